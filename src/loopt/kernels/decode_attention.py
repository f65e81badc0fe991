"""Attention of new tokens to a cache: rotary positions, keeping keys and values, and mixing in one or two kernels.

Sizes: B rows of the batch, T new tokens of each, H heads of queries, KV of keys and values, S places of a cache, E
head_dim.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopt.attention import Context, Heads
from loopt.model import ModelConfig

HEAD_DIMS = (16, 32, 64, 128)
TILE, WARPS = 64, 2  # keys of a tile, and the warps of a program: the fastest on an H200, for 1 to 64 rows
MOST_SPLITS = 16
LOG2_E = 1.4426950408889634  # times the scale, so that exp2 takes the place of exp
LOWEST = tl.constexpr(-1e30)


@triton.jit
def _rotated(pointer, cos, sin, E: tl.constexpr, ROPE: tl.constexpr):
    """Loads a query or a key in two halves [E / 2], rotated by its position."""
    HALF: tl.constexpr = E // 2
    half = tl.arange(0, HALF)
    a = tl.load(pointer + half).to(tl.float32)
    b = tl.load(pointer + HALF + half).to(tl.float32)
    if ROPE:
        c = tl.load(cos + HALF + half)  # the second half: in the first, sines are negated
        s = tl.load(sin + HALF + half)
        a, b = a * c - b * s, b * c + a * s
    return a, b


@triton.jit
def _keep(keys, values, at, k1, k2, v, E: tl.constexpr):
    HALF: tl.constexpr = E // 2
    tl.store(keys + at + tl.arange(0, HALF), k1)
    tl.store(keys + at + HALF + tl.arange(0, HALF), k2)
    tl.store(values + at + tl.arange(0, E), v)


@triton.jit
def _keep_kernel(
    qkv, cos, sin, keys, values, positions, S, T,
    H: tl.constexpr, KV: tl.constexpr, E: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    """Keeps the key and the value of one new token and head."""
    token, group = tl.program_id(0) // KV, tl.program_id(0) % KV
    here = qkv + token.to(tl.int64) * (H + 2 * KV) * E
    k1, k2 = _rotated(here + (H + group) * E, cos + token * E, sin + token * E, E, ROPE)
    v = tl.load(here + (H + KV + group) * E + tl.arange(0, E))
    at = (((token // T).to(tl.int64) * KV + group) * S + tl.load(positions + token) % S) * E
    stored = keys.dtype.element_ty
    _keep(keys, values, at, k1.to(stored), k2.to(stored), v, E)


@triton.jit
def _load_tile(keys, values, base, first, end, slot, E: tl.constexpr, BS: tl.constexpr):
    """Loads both halves of BS keys [BS, E / 2], their values [BS, E], and which of them are there: those before ``end``
    but for the one in ``slot``."""
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
    score = tl.where(known, score, LOWEST)
    higher = tl.maximum(highest, tl.max(score))
    power = tl.where(known, tl.exp2(score - higher), 0.0)
    shrink = tl.exp2(highest - higher)
    return higher, weight * shrink + tl.sum(power), mixed * shrink + tl.sum(power[:, None] * vs.to(tl.float32), axis=0)


@triton.jit
def _finish(out, partial, arrived, number, split, highest, weight, mixed, E: tl.constexpr, SPLITS: tl.constexpr):
    """Stores what a head has mixed. Of several splits, the last to end puts their shares together."""
    whole = tl.arange(0, E)
    if SPLITS == 1:
        tl.store(out + number * E + whole, (mixed / weight).to(out.dtype.element_ty))
    else:
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


@triton.jit
def _attention_kernel(
    qkv, cos, sin, keys, values, positions, out, partial, arrived, scale, S, T,
    H: tl.constexpr, KV: tl.constexpr, E: tl.constexpr, BS: tl.constexpr, SPLITS: tl.constexpr, ROPE: tl.constexpr,
    KEEP: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Mixes, for one new token and head, the values of all that is kept up to it, split among SPLITS programs. With
    KEEP the token's own key and value come from registers, and are kept by the way. EARLY asks for the first keys
    before the kernel before this one has ended: they were kept with earlier tokens, and positions change between
    tokens."""
    number, split = tl.program_id(0), tl.program_id(1)
    token, head = number // H, number % H
    group = head // (H // KV)
    position = tl.load(positions + token)
    slot, kept = position % S, tl.minimum(position, S)
    own_slot = slot
    if not KEEP:
        own_slot, kept = slot - S, tl.minimum(position + 1, S)  # no slot is left out
    base = ((token // T).to(tl.int64) * KV + group) * S * E
    chunk = tl.cdiv(tl.cdiv(kept, SPLITS), BS) * BS
    start, end = split * chunk, tl.minimum((split + 1) * chunk, kept)
    a, b, vs, known = _load_tile(keys, values, base, start, end, own_slot, E, BS)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()

    here = qkv + token.to(tl.int64) * (H + 2 * KV) * E
    q1, q2 = _rotated(here + head * E, cos + token * E, sin + token * E, E, ROPE)
    q1, q2 = q1 * scale, q2 * scale
    v = tl.load(here + (H + KV + group) * E + tl.arange(0, E))
    highest, weight = LOWEST + 0.0 * scale, 0.0 * scale
    mixed = v.to(tl.float32) * 0.0
    if KEEP:
        k1, k2 = _rotated(here + (H + group) * E, cos + token * E, sin + token * E, E, ROPE)
        stored = keys.dtype.element_ty
        k1, k2 = k1.to(stored), k2.to(stored)
        if (split == 0) & (head % (H // KV) == 0):
            _keep(keys, values, base + slot * E, k1, k2, v, E)
        own = tl.sum(q1 * k1.to(tl.float32) + q2 * k2.to(tl.float32))
        highest = tl.where(split == 0, own, LOWEST)
        weight = tl.where(split == 0, 1.0, 0.0)
        mixed = v.to(tl.float32) * weight
    highest, weight, mixed = _mix_tile(q1, q2, a, b, vs, known, highest, weight, mixed)
    for first in range(start + BS, end, BS):
        a, b, vs, known = _load_tile(keys, values, base, first, end, own_slot, E, BS)
        highest, weight, mixed = _mix_tile(q1, q2, a, b, vs, known, highest, weight, mixed)
    _finish(out, partial, arrived, number, split, highest, weight, mixed, E, SPLITS)


def attend(qkv: Tensor, context: Context, heads: Heads) -> Tensor:
    """Computes ``loopt.generation.attention.attend_new``: [B * T, H + 2K, E] -> [B * T, H, E]. Of several new tokens
    each sees those before it, so that all are kept first; a window takes one at a time."""
    place, new = context.cache
    ((_, T),) = context.packing
    rows, E, S, H, KV = qkv.shape[0], qkv.shape[2], place.keys.shape[2], heads.queries, heads.keys
    assert T == 1 or place.window is None
    out = torch.empty(rows, H, E, device=qkv.device, dtype=qkv.dtype)
    cos, sin = context.rope or (qkv, qkv)  # not read without rotary positions
    cached, rope = (qkv, cos, sin, place.keys, place.values, new.positions), context.rope is not None
    if T > 1:
        _keep_kernel[(rows * KV,)](*cached, S, T, H, KV, E, rope, num_warps=1)
    splits = _splits(rows * H, S)
    early = rows == 1 and launches_early(qkv.device)
    _attention_kernel[(rows * H, splits)](
        *cached, out, *_scratch(rows * H, splits, E, qkv.device), heads.scale * LOG2_E, S, T,
        H, KV, E, TILE, splits, rope, T == 1, early, num_warps=WARPS, num_stages=1, launch_pdl=early,
    )  # fmt: skip
    return out


def _splits(heads: int, length: int) -> int:
    """Returns among how many programs to split what is kept: as many as keep the chip busy, with work for each."""
    splits = 1
    while heads * splits < 1024 and splits * TILE < length and splits < MOST_SPLITS:
        splits *= 2
    return splits


@functools.cache
def _scratch(heads: int, splits: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns room for the programs' shares, and their counters. It is kept for good, since captured graphs hold its
    address; programs of one stream come one after the other."""
    shares = torch.empty(heads * splits * (head_dim + 2), dtype=torch.float32, device=device)
    return shares, torch.zeros(heads, dtype=torch.int32, device=device)


@functools.cache
def launches_early(device: torch.device) -> bool:
    """Tells whether kernels can be launched before the one before them has ended (programmatic dependent launch), and
    wait for it themselves: from Hopper on. With one row that hides much of a kernel's start; with more, programs are
    larger, and those that wait take room from those that work."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def fits_attention(config: ModelConfig) -> bool:
    """Tells whether ``attend`` can be used for a model of this shape."""
    return config.width_of_head in HEAD_DIMS and config.scale > 0
