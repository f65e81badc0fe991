"""Reading tokens out of states, some at a time: the logits of all tokens never exist together.

With a vocabulary of 50,000 they would be the largest tensor by far.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from loopt.model import LoopedTransformer

CHUNK_BYTES = 2**28
"""Of logits at a time: at 50,304 words in bfloat16, 2,668 tokens."""


def token_log_probabilities(
    x: Tensor, readout: Tensor, targets: Tensor, *, compiled: bool = False, chunk_bytes: int = CHUNK_BYTES
) -> Tensor:
    """Returns the log-probability of each target [N] under what the readout [V, D] makes of x [N, D], as [N]."""
    (found,) = _in_chunks(_log_probability_of, x, readout, targets, compiled=compiled, chunk_bytes=chunk_bytes)
    return found


def token_predictions(
    x: Tensor, readout: Tensor, targets: Tensor, *, chunk_bytes: int = CHUNK_BYTES
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of each target [N], and whether it is the first choice, as [N] each."""
    scores, first = _in_chunks(_log_probability_and_choice, x, readout, targets, chunk_bytes=chunk_bytes)
    return scores, first == targets


@dataclass(frozen=True)
class Reading:
    """What a model says at every position."""

    tokens: Tensor
    """[B, T, top] int64: the likeliest tokens, the first choice first."""
    probabilities: Tensor
    """[B, T, top]: their probabilities."""
    entropy: Tensor
    """[B, T]: of the whole distribution, in nats."""
    target_log_probability: Tensor | None
    """[B, T]: of the tokens that were asked for."""


@torch.no_grad()
def read_out(
    model: LoopedTransformer, state: Tensor, top: int = 1, targets: Tensor | None = None, chunk_bytes: int = CHUNK_BYTES
) -> Reading:
    """Reads the likeliest tokens, the entropy and the log-probability of given tokens [B, T] out of a state [B, T, D],
    such as that of a ``Thought``."""
    shape = state.shape[:-1]
    asked = torch.zeros(shape, dtype=torch.int64, device=state.device) if targets is None else targets
    describe = functools.partial(_describe, top=min(top, model.config.vocab_size))
    x = model.final_norm(state).flatten(0, -2)  # [B * T, D]
    found = _in_chunks(describe, x, model.readout_weight, asked.flatten(), chunk_bytes=chunk_bytes)
    tokens, probabilities, entropy, log_probability = (one.unflatten(0, shape) for one in found)
    return Reading(tokens, probabilities, entropy, None if targets is None else log_probability)


@torch.no_grad()
def first_choices(model: LoopedTransformer, state: Tensor, chunk_bytes: int = CHUNK_BYTES) -> Tensor:
    """Returns the likeliest token at every position of a state [B, T, D], as [B, T]."""
    x = model.final_norm(state).flatten(0, -2)  # [B * T, D]
    no_targets = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    (found,) = _in_chunks(_first_choice, x, model.readout_weight, no_targets, chunk_bytes=chunk_bytes)
    return found.view(state.shape[:-1])


def readout_type(x: Tensor, readout: Tensor) -> torch.dtype:
    """Returns the type of the readout's product: autocast's where that is on."""
    device = x.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return torch.promote_types(x.dtype, readout.dtype)


def rows_per_chunk(x: Tensor, readout: Tensor, dtype: torch.dtype, chunk_bytes: int) -> int:
    """Returns how many rows of x [N, D] to read out at a time, so that all chunks but the last have one size."""
    chunks = math.ceil(x.shape[0] * readout.shape[0] * dtype.itemsize / chunk_bytes)
    return math.ceil(x.shape[0] / max(chunks, 1))


@functools.cache
def compiled_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function compiled; the same one every time it is asked for."""
    return torch.compile(function)


def _in_chunks(
    measure: Callable[..., tuple[Tensor, ...]],
    x: Tensor,
    readout: Tensor,
    targets: Tensor,
    *,
    compiled: bool = False,
    chunk_bytes: int,
) -> tuple[Tensor, ...]:
    """Returns what ``measure`` makes of the logits and targets of each chunk, put together again."""
    dtype = readout_type(x, readout)
    rows = max(1, rows_per_chunk(x, readout, dtype, chunk_bytes))
    with torch.autocast(x.device.type, enabled=False):
        x, readout = x.to(dtype), readout.to(dtype)
        function = compiled_once(measure) if compiled else measure
        chunks = zip(x.split(rows), targets.split(rows), strict=True)
        found = [function(F.linear(some, readout), wanted) for some, wanted in chunks]
    return tuple(torch.cat(column) for column in zip(*found, strict=True))


def _exact(logits: Tensor) -> Tensor:
    """Returns log-probabilities [N, V], in float32 at least."""
    return logits.log_softmax(1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _first_choice(logits: Tensor, targets: Tensor) -> tuple[Tensor]:
    return (logits.argmax(1),)


def _log_probability_of(logits: Tensor, targets: Tensor) -> tuple[Tensor]:
    return (_exact(logits).gather(1, targets[:, None])[:, 0],)


def _log_probability_and_choice(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return _log_probability_of(logits, targets)[0], logits.argmax(1)


def _describe(logits: Tensor, targets: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scores = _exact(logits)  # [N, V]
    best, tokens = scores.topk(top, dim=1)  # [N, top]
    entropy = -(scores.exp() * scores).nan_to_num(0.0).sum(1)  # a token that cannot be adds nothing
    return tokens, best.exp(), entropy, scores.gather(1, targets[:, None])[:, 0]
