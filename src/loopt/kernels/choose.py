"""Choosing the next token in one kernel: the likeliest, or one drawn by its probability with the row's own number."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopt.random_bits import FIRST_FACTOR, GOLDEN, SECOND_FACTOR, row_keys

BLOCK, WARPS = 8192, 16
_GOLDEN, _FIRST, _SECOND = tl.constexpr(GOLDEN), tl.constexpr(FIRST_FACTOR), tl.constexpr(SECOND_FACTOR)


@triton.jit
def _mix(x):
    """Mixes 64 bits as ``loopt.random_bits`` does; shifts are unsigned."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _FIRST
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _load(logits, first, V, BLOCK: tl.constexpr):
    v = first + tl.arange(0, BLOCK)
    return v, tl.load(logits + v, mask=v < V, other=float("-inf"))


@triton.jit
def _choose_kernel(
    logits, keys, drawn, tokens, log_probabilities, V, stride, coldness, row_key, count_key,
    DRAW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Chooses the token of a row: the likeliest, the first of equals, or with DRAW the first at which the cumulative
    weights, powers of e of the logits times ``coldness``, exceed a random share of their sum. -1 where a logit is not a
    number."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    index = tl.zeros((BLOCK,), tl.int32)
    total = tl.zeros((BLOCK,), tl.float32)
    broken = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, V, BLOCK):
        v, x = _load(logits, first, V, BLOCK)
        broken |= (x != x).to(tl.int32)
        better = x > best
        higher = tl.where(better, x, best)
        total = tl.where(higher == float("-inf"), 0.0, total * tl.exp(best - higher) + tl.exp(x - higher))
        best, index = higher, tl.where(better, v, index)
    highest = tl.max(best)
    token = tl.min(tl.where(best == highest, index, V))
    total = tl.sum(tl.where(best == float("-inf"), 0.0, total * tl.exp(best - highest)))
    if DRAW:
        weights = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, V, BLOCK):
            v, x = _load(logits, first, V, BLOCK)
            weights += tl.exp((x - highest) * coldness)
        key, count = tl.load(keys + row), tl.load(drawn + row)
        bits = _mix(_mix((key ^ row_key) * _GOLDEN) + _mix((count ^ count_key) * _GOLDEN))
        wanted = ((bits >> 40) & 0xFFFFFF).to(tl.float32) * 5.9604644775390625e-08 * tl.sum(weights)  # 2^-24
        reached, found = 0.0, V
        for first in range(0, V, BLOCK):
            v, x = _load(logits, first, V, BLOCK)
            weight = tl.exp((x - highest) * coldness)
            exceeds = reached + tl.cumsum(weight, 0) > wanted
            found = tl.minimum(found, tl.min(tl.where(exceeds & (weight > 0), v, V)))
            reached += tl.sum(weight)
        token = tl.where(found < V, found, token)  # rounding may leave none
        tl.store(drawn + row, count + 1)
    tl.store(tokens + row, tl.where(tl.max(broken) > 0, -1, token).to(tl.int64))
    tl.store(log_probabilities + row, tl.load(logits + token) - highest - tl.log(total))


def choose(logits: Tensor, keys: Tensor, drawn: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Chooses a token of each row of logits [B, V], in float32, and returns it with its log-probability: [B] each. At
    temperature 0 it is the likeliest; else drawn by the row's key and by how many it has drawn, which is counted up."""
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    log_probabilities = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    coldness = 1 / temperature if temperature else 0.0
    _choose_kernel[(len(logits),)](
        logits, keys, drawn, tokens, log_probabilities, logits.shape[1], logits.stride(0), coldness,
        *row_keys("token"), temperature > 0, BLOCK, num_warps=WARPS,
    )  # fmt: skip
    return tokens, log_probabilities
