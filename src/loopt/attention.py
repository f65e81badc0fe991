"""Causal attention: queries, keys and values, rotary positions, and which kernel mixes them.

Sizes in the shape comments: B batch, T tokens, N tokens of all sequences, D d_model, H heads, K heads of keys and
values, E head_dim. An exported model carries this file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Packing = tuple[tuple[int, int], ...]
"""How many sequences of how many tokens lie end to end: ((205, 13), (205, 21))."""
Rope = tuple[Tensor, Tensor]
"""Cosines and signed sines of the rotary positions: [positions, E] each, or [B, T, E] where rows differ."""


class Heads(NamedTuple):
    """How many heads attention has, and the factor on their scores."""

    queries: int
    keys: int
    """Heads of keys, and of values; each serves an equal share of the query heads."""
    scale: float


class Context(NamedTuple):
    """What a layer needs besides its input."""

    packing: Packing
    """Which sequences the input holds."""
    rope: Rope | None
    """The rope of the positions of each sequence, from its first token on."""
    attend: Attend
    """Which attention to use: a training kernel, prefill, or one query against a cache."""
    cache: Any = None
    """What this layer's attention keeps in this loop, such as keys and values; the walker puts it there."""
    run_layer: Callable[[Any, Tensor, Context], Tensor] | None = None
    """Runs a layer in place of its own forward: kernels that compute a whole one."""


Attend = Callable[[Tensor, Context, Heads], Tensor]
"""[N, H + 2K, E] queries, keys and values, a context, and the heads -> [N, H, E]."""
Split = Callable[[Tensor, Heads, Rope | None], tuple[Tensor, Tensor, Tensor]]
"""[B, T, H + 2K, E], the heads and the rope -> queries [B, T, H, E], keys and values [B, T, K, E]."""


class Attention(nn.Module):
    def __init__(self, d_model: int, heads: Heads, head_dim: int, *, bias: bool, qk_norm: bool) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.qkv = nn.Linear(d_model, sum(self._split) * head_dim, bias=bias)  # rows: queries, keys, values
        self.output = nn.Linear(heads.queries * head_dim, d_model, bias=bias)
        self.query_norm = nn.RMSNorm(head_dim, eps=1e-6) if qk_norm else None
        self.key_norm = nn.RMSNorm(head_dim, eps=1e-6) if qk_norm else None

    @property
    def _split(self) -> tuple[int, int, int]:
        return self.heads.queries, self.heads.keys, self.heads.keys

    def forward(self, x: Tensor, context: Context) -> Tensor:
        qkv = self.qkv(x).view(-1, sum(self._split), self.head_dim)  # [B, T, D] or [N, D] -> [N, H + 2K, E]
        if self.query_norm is not None and self.key_norm is not None:
            q, k, v = qkv.split(self._split, dim=1)
            qkv = torch.cat([self.query_norm(q), self.key_norm(k), v], dim=1)
        mixed = context.attend(qkv, context, self.heads)  # [N, H, E]
        return self.output(mixed.reshape(*x.shape[:-1], -1))  # [N, H, E] -> as x

    def rows(self) -> dict[str, slice]:
        """Returns the rows of ``qkv``'s weight that make queries, keys and values."""
        q, k, v = (count * self.head_dim for count in self._split)
        return {"query": slice(0, q), "key": slice(q, q + k), "value": slice(q + k, q + k + v)}


def attend(qkv: Tensor, context: Context, heads: Heads) -> Tensor:
    """Has every head's queries look at the keys of their sequence up to their own: [N, H + 2K, E] -> [N, H, E]."""
    return attend_with(split_and_rotate, qkv, context, heads)


def attend_with(split: Split, qkv: Tensor, context: Context, heads: Heads) -> Tensor:
    """Does what ``attend`` does, with ``split`` to prepare queries, keys and values."""
    mixed = []
    for piece, shape in zip(
        qkv.split([count * length for count, length in context.packing]), context.packing, strict=True
    ):
        q, k, v = split(piece.unflatten(0, shape), heads, context.rope)  # [B * T, H + 2K, E] -> [B, T, H, E] …
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # [B, T, H, E] -> [B, H, T, E]
        one = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=heads.scale, enable_gqa=heads.keys < heads.queries
        )
        mixed.append(one.transpose(1, 2).flatten(0, 1))  # [B, H, T, E] -> [B * T, H, E]
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def split_and_rotate(qkv: Tensor, heads: Heads, rope: Rope | None) -> tuple[Tensor, Tensor, Tensor]:
    """Splits fused QKV [B, T, H + 2K, E] and applies rotary positions to queries and keys."""
    if rope is None:
        q, k, v = qkv.split((heads.queries, heads.keys, heads.keys), dim=2)
        return q, k, v
    qk, v = qkv.split((heads.queries + heads.keys, heads.keys), dim=2)
    cos, sin = (table[..., : qkv.shape[1], :] for table in rope)
    q, k = rotate(qk, cos, sin).split((heads.queries, heads.keys), dim=2)
    # v as a copy: kept for the backward pass, a view of it would keep the unrotated queries and keys as well
    return q, k, v.clone()


def rotations(positions: int, head_dim: int, base: float) -> Rope:
    """Returns cosine and signed sine of position · frequency, what ``rotate`` needs: [positions, E] each."""
    pairs = head_dim // 2
    frequencies = base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)  # [positions, E/2]
    cos, sin = angles.cos().float(), angles.sin().float()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates coordinates e and e + E/2 of every query and key by their position's angle."""
    cos, sin = cos[..., None, :], sin[..., None, :]  # [T, E] or [B, T, E], against x [B, T, H + K, E]
    other = x.roll(x.shape[-1] // 2, dims=-1)  # the other coordinate of each pair
    return (x * cos + other * sin).to(x.dtype)


def fastest_attention(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Has CUDA try cuDNN's kernel first, then flash, then what works anywhere."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    order = [
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ]
    return sdpa_kernel(order, set_priority=True)
