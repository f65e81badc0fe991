"""The unigram model, which predicts tokens by their frequency alone: a baseline for language models."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loopt.source import Split
from loopt.text.token_data import TokenData


@dataclass(frozen=True)
class Unigram:
    """The scores of the unigram model of a prepared text."""

    train_entropy: float
    """The entropy of training tokens, in bits per token."""
    perplexity: dict[Split, float]
    """The perplexity of validation and test, where they have tokens, under the training counts, each plus one."""


def unigram(data: TokenData) -> Unigram:
    """Counts the training tokens and returns how well the counts predict the tokens that are held out."""
    train = _counts(data, "train")
    seen = train[train > 0] / train.sum()
    entropy = float(-(seen * np.log2(seen)).sum())
    log_probability = np.log((train + 1) / (train.sum() + len(train)))
    perplexity: dict[Split, float] = {}
    for split in ("validation", "test"):
        held_out = _counts(data, split)
        if held_out.sum():
            perplexity[split] = math.exp(-(held_out * log_probability).sum() / held_out.sum())
    return Unigram(entropy, perplexity)


def _counts(data: TokenData, split: Split) -> NDArray[np.int64]:
    counts = np.zeros(data.vocab_size, dtype=np.int64)
    for chunk in data.chunks(split):
        counts += np.bincount(chunk, minlength=data.vocab_size)
    return counts
