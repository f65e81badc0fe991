"""The unigram model: what a model knows that has counted tokens and looks at nothing. A baseline for any other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loopt.text.index import Split
from loopt.text.token_data import TokenData


@dataclass(frozen=True)
class Unigram:
    train_entropy: float
    """In bits a token."""
    validation_perplexity: float | None
    """Of the validation tokens under the training counts, each plus one; None where nothing is held out."""


def unigram(data: TokenData) -> Unigram:
    train, validation = _counts(data, "train"), _counts(data, "validation")
    seen = train[train > 0] / train.sum()
    entropy = float(-(seen * np.log2(seen)).sum())
    if not validation.sum():
        return Unigram(entropy, None)
    log_probability = np.log((train + 1) / (train.sum() + len(train)))
    loss = -(validation * log_probability).sum() / validation.sum()
    return Unigram(entropy, math.exp(loss))


def _counts(data: TokenData, split: Split) -> NDArray[np.int64]:
    counts = np.zeros(data.vocab_size, dtype=np.int64)
    for chunk in data.chunks(split):
        counts += np.bincount(chunk, minlength=data.vocab_size)
    return counts
