"""Perplexity: how many words a language model hesitates between, e to the mean loss per token."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from loopt.text.index import Split
from loopt.text.token_data import TokenData

SummedLoss = Callable[[Tensor, Tensor], Tensor]
"""[B, T + 1] tokens and [B] weights of the sequences -> the loss of predicting each next token, summed."""


def perplexity(loss: float) -> float:
    """Of a mean loss per token; one that is out of all bounds is cut off where it can no longer be written."""
    return math.exp(min(loss, 700.0))


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
    """This rank's part of the mean loss per token over the first ``sequences`` of a split, in nats; the sum over all
    ranks is the whole. Every rank runs as many batches as the others, with weight 0 where there is nothing left."""
    total = torch.zeros((), dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
    count = min(sequences, data.sequences(split, length))
    for first in range(0, count, batch_size * ranks):
        wanted = torch.arange(first + rank * batch_size, first + (rank + 1) * batch_size)
        weights = (wanted < count).float()
        tokens = data.read(split, wanted.clamp(max=count - 1), length)  # [batch, length + 1]
        total += loss(tokens.to(device), weights.to(device))
    return total / (count * length)
