"""Decoding a token of each row in few kernels: norms, activations and residual sums inside matrix products, and rotary
positions and the cache inside attention.

With few rows a layer takes as long as it takes to read its weights, and every further kernel adds its start and its
end. So a layer is five kernels: queries, keys and values of the normed input; attention; its output added to the
residual stream; the feed-forward's hidden units; and these, added too.

Sizes: M rows, N outputs and K inputs of a product, B rows of the batch, S places of a cache, E head_dim.
"""

from __future__ import annotations

import functools
from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from loopt.attention import Context, Heads
from loopt.model import Layer, ModelConfig

MOST_ROWS = 64
HEAD_DIMS = (16, 32, 64, 128)
LOG2_E = 1.4426950408889634
KINDS = {"none": 0, "swiglu": 1, "gelu": 2, "relu": 3}
SWIGLU, GELU, RELU = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)


@triton.jit
def _activated(total, gated, KIND: tl.constexpr):
    if KIND == SWIGLU:
        total *= gated / (1.0 + tl.exp(-gated))
    elif KIND == GELU:
        total *= 0.5 * (1.0 + tl.erf(total * 0.7071067811865476))
    elif KIND == RELU:
        total = tl.maximum(total, 0.0)
    return total


@triton.jit
def _vector_kernel(
    x, norm, weight, gate, residual, y, M, N, alpha, eps,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    NORM: tl.constexpr, KIND: tl.constexpr, RESIDUAL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Computes what ``_linear_kernel`` does, for one row: BN outputs, with all inputs at once. Weights are asked for
    before the kernel before this one has ended."""
    n, k = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN), tl.arange(0, BK)
    there, at = (k < K)[None, :], tl.minimum(n, N - 1)[:, None] * K + k[None, :]
    w = tl.load(weight + at, mask=there, other=0.0).to(tl.float32)  # [BN, BK]
    gated = tl.zeros((BN,), tl.float32)
    if KIND == SWIGLU:
        g = tl.load(gate + at, mask=there, other=0.0).to(tl.float32)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)
    factor = 1.0
    if NORM:
        factor = tl.rsqrt(tl.sum(row * row) / K + eps)
        row *= tl.load(norm + k, mask=k < K, other=0.0).to(tl.float32)
    total = tl.sum(w * row[None, :], axis=1) * factor
    if KIND == SWIGLU:
        gated = tl.sum(g * row[None, :], axis=1) * factor
    total = _activated(total, gated, KIND)
    if RESIDUAL:
        total = tl.load(residual + n, mask=n < N, other=0.0).to(tl.float32) + alpha * total
    tl.store(y + n, total.to(y.dtype.element_ty), mask=n < N)


@triton.jit
def _linear_kernel(
    x, norm, weight, gate, residual, y, M, N, alpha, eps,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    NORM: tl.constexpr, KIND: tl.constexpr, RESIDUAL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Computes BN outputs of all rows: y [M, N] = kind(normed(x) [M, K] · weight [N, K]ᵀ), times alpha and added to
    ``residual``. The norm's factor of a row is one number, so it multiplies the product, not every input."""
    n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    m, k = tl.arange(0, BM), tl.arange(0, BK)
    read_n = tl.minimum(n, N - 1)[:, None] * K
    read_m = tl.minimum(m, M - 1)[:, None] * K
    total = tl.zeros((BN, BM), tl.float32)
    gated = tl.zeros((BN, BM), tl.float32)
    squares = tl.zeros((BM,), tl.float32)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    for first in range(0, K, BK):
        inputs = tl.load(x + read_m + first + k[None, :])  # [BM, BK]
        w = tl.load(weight + read_n + first + k[None, :])  # [BN, BK]
        if NORM:
            exact = inputs.to(tl.float32)
            squares += tl.sum(exact * exact, axis=1)
            inputs = (exact * tl.load(norm + first + k)[None, :].to(tl.float32)).to(w.dtype)
        total = tl.dot(w, tl.trans(inputs), total, input_precision="ieee")
        if KIND == SWIGLU:
            g = tl.load(gate + read_n + first + k[None, :])
            gated = tl.dot(g, tl.trans(inputs), gated, input_precision="ieee")
    if NORM:
        factor = tl.rsqrt(squares / K + eps)[None, :]
        total *= factor
        gated *= factor
    total = _activated(total, gated, KIND)
    at = m[None, :] * N + n[:, None]
    mask = (n < N)[:, None] & (m < M)[None, :]
    if RESIDUAL:
        total = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32) + alpha * total
    tl.store(y + at, total.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _load_tile(keys, values, base, first, end, slot, E: tl.constexpr, BS: tl.constexpr):
    """Loads both halves of BS keys [BS, E / 2], their values [BS, E], and which of them are there: those before ``end``
    but for the new token's own, which is in registers."""
    HALF: tl.constexpr = E // 2
    half, there = tl.arange(0, HALF)[None, :], first + tl.arange(0, BS)
    known = (there < end) & (there != slot)
    at, mask = base + (there * E)[:, None], known[:, None]
    a = tl.load(keys + at + half, mask=mask, other=0.0)
    b = tl.load(keys + at + HALF + half, mask=mask, other=0.0)
    vs = tl.load(values + at + tl.arange(0, E)[None, :], mask=mask, other=0.0)
    return a, b, vs, known


@triton.jit
def _mix_tile(q1, q2, a, b, vs, known, highest, weight, mixed):
    """Adds a tile to what is mixed so far, whose weights are powers of 2 below ``highest``."""
    score = tl.sum(a.to(tl.float32) * q1[None, :], axis=1) + tl.sum(b.to(tl.float32) * q2[None, :], axis=1)
    score = tl.where(known, score, -1e30)
    higher = tl.maximum(highest, tl.max(score))
    power = tl.where(known, tl.exp2(score - higher), 0.0)
    shrink = tl.exp2(highest - higher)
    return higher, weight * shrink + tl.sum(power), mixed * shrink + tl.sum(power[:, None] * vs.to(tl.float32), axis=0)


@triton.jit
def _attention_kernel(
    qkv, cos, sin, keys, values, positions, out, partial, arrived, scale, S,
    H: tl.constexpr, KV: tl.constexpr, E: tl.constexpr, BS: tl.constexpr, SPLITS: tl.constexpr, ROPE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Rotates the new query and key of a row and head, keeps key and value, and mixes the values of all that is kept.
    What is kept is split among SPLITS programs, the last of which to end puts their shares together."""
    number, split = tl.program_id(0), tl.program_id(1)
    row, head = number // H, number % H
    group = head // (H // KV)
    HALF: tl.constexpr = E // 2
    half, whole = tl.arange(0, HALF), tl.arange(0, E)
    position = tl.load(positions + row)
    slot, kept = position % S, tl.minimum(position, S)
    base = (row.to(tl.int64) * KV + group) * S * E
    chunk = tl.cdiv(tl.cdiv(kept, SPLITS), BS) * BS
    start, end = split * chunk, tl.minimum((split + 1) * chunk, kept)
    a, b, vs, known = _load_tile(keys, values, base, start, end, slot, E, BS)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()

    here = qkv + row.to(tl.int64) * (H + 2 * KV) * E
    q1 = tl.load(here + head * E + half).to(tl.float32)
    q2 = tl.load(here + head * E + HALF + half).to(tl.float32)
    k1 = tl.load(here + (H + group) * E + half).to(tl.float32)
    k2 = tl.load(here + (H + group) * E + HALF + half).to(tl.float32)
    v = tl.load(here + (H + KV + group) * E + whole)
    if ROPE:
        c = tl.load(cos + row * E + HALF + half)  # the second half: in the first, sines are negated
        s = tl.load(sin + row * E + HALF + half)
        q1, q2 = q1 * c - q2 * s, q2 * c + q1 * s
        k1, k2 = k1 * c - k2 * s, k2 * c + k1 * s
    stored = keys.dtype.element_ty
    k1, k2 = k1.to(stored), k2.to(stored)
    if (split == 0) & (head % (H // KV) == 0):
        tl.store(keys + base + slot * E + half, k1)
        tl.store(keys + base + slot * E + HALF + half, k2)
        tl.store(values + base + slot * E + whole, v)

    q1, q2 = q1 * scale, q2 * scale
    own = tl.sum(q1 * k1.to(tl.float32) + q2 * k2.to(tl.float32))
    highest = tl.where(split == 0, own, -1e30)
    weight = tl.where(split == 0, 1.0, 0.0)
    mixed = v.to(tl.float32) * weight
    highest, weight, mixed = _mix_tile(q1, q2, a, b, vs, known, highest, weight, mixed)
    for first in range(start + BS, end, BS):
        a, b, vs, known = _load_tile(keys, values, base, first, end, slot, E, BS)
        highest, weight, mixed = _mix_tile(q1, q2, a, b, vs, known, highest, weight, mixed)

    if SPLITS > 1:
        share = partial + (number * SPLITS + split) * (E + 2)
        tl.store(share + whole, mixed)
        tl.store(share + E, highest)
        tl.store(share + E + 1, weight)
        tl.debug_barrier()
        before = tl.atomic_add(arrived + number, 1, sem="acq_rel")
        if before == SPLITS - 1:
            shares = partial + (number * SPLITS + tl.arange(0, SPLITS)) * (E + 2)  # [SPLITS]
            all_highest = tl.load(shares + E, cache_modifier=".cg")
            all_weights = tl.load(shares + E + 1, cache_modifier=".cg")
            all_mixed = tl.load(shares[:, None] + whole[None, :], cache_modifier=".cg")  # [SPLITS, E]
            power = tl.exp2(all_highest - tl.max(all_highest))
            total = tl.sum(all_mixed * power[:, None], axis=0) / tl.sum(all_weights * power)
            tl.store(out + number * E + whole, total.to(out.dtype.element_ty))
            tl.store(arrived + number, 0)
    else:
        tl.store(out + number * E + whole, (mixed / weight).to(out.dtype.element_ty))


def linear(
    x: Tensor,
    weight: Tensor,
    *,
    norm: nn.Module | None = None,
    kind: Literal["none", "swiglu", "gelu", "relu"] = "none",
    gate: Tensor | None = None,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Returns kind(norm(x) [M, K] · weight [N, K]ᵀ) as [M, N], times alpha and added to the residual [M, N] where there
    is one. swiglu is silu of the product with ``gate``, times that with ``weight``."""
    (M, K), N = x.shape, weight.shape[0]
    y = torch.empty(M, N, device=x.device, dtype=x.dtype) if out is None else out
    BM, BN, BK, warps, stages = _tile(M, N, K, kind == "swiglu")
    scale, early = x if norm is None else norm.weight, M == 1 and _launches_early(x.device)
    kernel = _vector_kernel if M == 1 else _linear_kernel
    kernel[(triton.cdiv(N, BN),)](
        x, scale, weight, weight if gate is None else gate, y if residual is None else residual, y, M, N, alpha, 1e-6,
        K, BM, BN, BK, norm is not None, KINDS[kind], residual is not None, early,
        num_warps=warps, num_stages=stages, launch_pdl=early,
    )  # fmt: skip
    return y


def _tile(M: int, N: int, K: int, gated: bool) -> tuple[int, int, int, int, int]:
    """Returns rows, outputs and inputs of a program's tile, its warps, and how many tiles it loads ahead: what was
    fastest on an H200 for the shapes of lm-1b."""
    if M == 1:
        return 1, 2 if N < 4096 else 4, triton.next_power_of_2(K), 8, 1
    BM, divisor = max(16, triton.next_power_of_2(M)), K & -K  # the largest power of two that divides K
    if gated or N > 20_000:
        return BM, 64, min(divisor, 64), 4, 5 if gated and M <= 16 else 3
    return BM, 64 if N >= 4096 else 16, min(divisor, 256), 4, 3


@functools.cache
def _launches_early(device: torch.device) -> bool:
    """Tells whether kernels can be launched before the one before them has ended (programmatic dependent launch), and
    wait for it themselves: from Hopper on. With one row that hides much of a kernel's start; with more, programs are
    larger, and those that wait take room from those that work."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def attend(qkv: Tensor, context: Context, heads: Heads) -> Tensor:
    """Computes ``loopt.generation.attention.attend_new`` for one new token of each row: [B, H + 2K, E] -> [B, H, E]."""
    place, new = context.cache
    B, E, S = qkv.shape[0], qkv.shape[2], place.keys.shape[2]
    out = torch.empty(B, heads.queries, E, device=qkv.device, dtype=qkv.dtype)
    splits = _splits(B * heads.queries, S)
    partial, arrived = _scratch(B * heads.queries, splits, E, qkv.device)
    cos, sin = context.rope or (qkv, qkv)  # not read without rotary positions
    early = B == 1 and _launches_early(qkv.device)
    _attention_kernel[(B * heads.queries, splits)](
        qkv, cos, sin, place.keys, place.values, new.positions, out, partial, arrived, heads.scale * LOG2_E, S,
        heads.queries, heads.keys, E, 64, splits, context.rope is not None, early,
        num_warps=2, num_stages=1, launch_pdl=early,
    )  # fmt: skip
    return out


def _splits(heads: int, length: int) -> int:
    """Returns among how many programs to split what is kept: as many as keep the chip busy, with work for each."""
    splits = 1
    while heads * splits < 1024 and splits * 64 < length and splits < 16:
        splits *= 2
    return splits


@functools.cache
def _scratch(heads: int, splits: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns room for the programs' shares, and their counters. It is kept for good, since captured graphs hold its
    address; programs of one stream come one after the other."""
    shares = torch.empty(heads * splits * (head_dim + 2), dtype=torch.float32, device=device)
    return shares, torch.zeros(heads, dtype=torch.int32, device=device)


def fits_attention(config: ModelConfig) -> bool:
    """Tells whether ``attend`` can be used for a model of this shape."""
    return config.width_of_head in HEAD_DIMS and config.scale > 0


def fits_layers(config: ModelConfig, rows: int) -> bool:
    """Tells whether ``run_layer`` and ``read_out`` can be used for a model of this shape and so many rows."""
    plain = config.norm == "rms" and config.norm_placement == "pre" and config.biases == "none" and not config.qk_norm
    inputs = (config.d_model, config.n_heads * config.width_of_head, config.d_ff)
    return fits_attention(config) and plain and rows <= MOST_ROWS and all(size % 32 == 0 for size in inputs)


def run_layer(layer: Layer, x: Tensor, context: Context) -> Tensor:
    """Computes what the layer does, for a few tokens of each row: [B, T, D] -> [B, T, D]."""
    rows, attention, feed_forward = x.flatten(0, 1), layer.attention, layer.feed_forward  # [B * T, D]
    qkv = linear(rows, attention.qkv.weight, norm=layer.attention_norm).unflatten(1, (-1, attention.head_dim))
    mixed = context.attend(qkv, context, attention.heads).flatten(1)  # [B * T, H * E]
    rows = linear(mixed, attention.output.weight, residual=rows, alpha=layer.branch_factor)
    gate = feed_forward.gate.weight if feed_forward.kind == "swiglu" else None
    hidden = linear(
        rows, feed_forward.up.weight, norm=layer.feed_forward_norm, kind=feed_forward.kind, gate=gate
    )  # [B * T, F]
    return linear(hidden, feed_forward.down.weight, residual=rows, alpha=layer.branch_factor).view_as(x)


def read_out(x: Tensor, norm: nn.Module, readout: Tensor, logits: Tensor) -> None:
    """Reads the logits [B, V] out of the last states [B, D]."""
    linear(x, readout, norm=norm, out=logits)


@triton.jit
def _likeliest_kernel(logits, tokens, log_probabilities, V, stride, BLOCK: tl.constexpr):
    """Finds a row's likeliest token, the first of equals, and its log-probability; -1 where one is not a number."""
    row = tl.program_id(0)
    v = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    index = tl.zeros((BLOCK,), tl.int32)
    total = tl.zeros((BLOCK,), tl.float32)
    broken = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, V, BLOCK):
        x = tl.load(logits + row.to(tl.int64) * stride + first + v, mask=first + v < V, other=float("-inf"))
        broken |= (x != x).to(tl.int32)
        better = x > best
        higher = tl.where(better, x, best)
        total = tl.where(higher == float("-inf"), 0.0, total * tl.exp(best - higher) + tl.exp(x - higher))
        best, index = higher, tl.where(better, first + v, index)
    highest = tl.max(best)
    token = tl.min(tl.where(best == highest, index, V))
    total = tl.sum(tl.where(best == float("-inf"), 0.0, total * tl.exp(best - highest)))
    tl.store(tokens + row, tl.where(tl.max(broken) > 0, -1, token).to(tl.int64))
    tl.store(log_probabilities + row, -tl.log(total))


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the likeliest token of each row of logits [B, V], a view of rows in float32, with its log-probability:
    [B] each. A row with a logit that is not a number gets -1."""
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    log_probabilities = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    _likeliest_kernel[(len(logits),)](
        logits, tokens, log_probabilities, logits.shape[1], logits.stride(0), 8192, num_warps=16
    )
    return tokens, log_probabilities
