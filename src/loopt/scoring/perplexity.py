"""Perplexity: how many words a language model hesitates between, e to the mean loss per token."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from loopt.model import LoopedTransformer
from loopt.scoring.precision import autocast, exact_type, scoring_batch
from loopt.scoring.readout import token_predictions
from loopt.source import Split
from loopt.text.token_data import TokenData

SummedLoss = Callable[[Tensor, Tensor], Tensor]
"""[B, T + 1] tokens and [B] weights of the sequences -> the loss of predicting each next token, summed; or several
such sums."""


def perplexity(loss: float) -> float:
    """Returns the perplexity of a mean loss per token; one too large to be written is cut off."""
    return math.exp(min(loss, 700.0))


@dataclass(frozen=True)
class TextFit:
    """How well a model predicts text."""

    loss: float
    """Mean loss per token, in nats."""
    accuracy: float
    """The share of tokens that are the model's first choice."""
    by_sequence: tuple[float, ...]
    """The mean loss per token of each sequence, in their order: what two models differ by on each tells the noise."""


def text_fit(
    model: LoopedTransformer, data: TokenData, split: Split, sequences: int, loops: int | None = None
) -> TextFit:
    """Returns how well a model predicts the first sequences of a split, as long as its max_len."""
    length, device = model.config.max_len, model.token_embedding.weight.device
    by_sequence: list[Tensor] = []

    def summed(tokens: Tensor, weights: Tensor) -> Tensor:
        with autocast(device):
            x = model.final_norm(model.iterate(model.embed(tokens[:, :-1]), loops))  # [B, T, D]
            scores, right = token_predictions(x.flatten(0, 1), model.readout_weight, tokens[:, 1:].flatten())
        found = torch.stack((-scores, right.to(scores.dtype))).view(2, len(tokens), length)
        by_sequence.append(found[0, weights > 0].mean(1))
        return (found * weights[:, None]).sum((1, 2))

    batch_size = scoring_batch(model.config, length, device)
    loss, accuracy = mean_loss(summed, data, split, length, sequences, batch_size, device).tolist()
    return TextFit(loss, accuracy, tuple(torch.cat(by_sequence).tolist()))


def text_loss(
    model: LoopedTransformer, data: TokenData, split: Split, sequences: int, loops: int | None = None
) -> float:
    """Returns the mean loss per token, in nats, over the first sequences of a split, as long as the model's max_len."""
    return text_fit(model, data, split, sequences, loops).loss


@torch.no_grad()
def mean_loss(
    loss: SummedLoss,
    data: TokenData,
    split: Split,
    length: int,
    sequences: int,
    batch_size: int,
    device: torch.device,
    rank: int = 0,
    ranks: int = 1,
) -> Tensor:
    """Returns this rank's share of the mean loss per token over the first ``sequences`` of a split, in nats; the sum
    over all ranks is the whole. Every rank runs as many batches as the others, with weight 0 where nothing is left."""
    total = torch.zeros((), dtype=exact_type(device), device=device)
    count = min(sequences, data.sequences(split, length))
    batch_size = min(batch_size, math.ceil(count / ranks))
    for first in range(0, count, batch_size * ranks):
        wanted = torch.arange(first + rank * batch_size, first + (rank + 1) * batch_size)
        weights = (wanted < count).float()
        tokens = data.read(split, wanted.clamp(max=count - 1), length)  # [batch, length + 1]
        total = total + loss(tokens.to(device), weights.to(device)).to(total.dtype)
    return total / (count * length)
