"""Attention that reads and writes a cache: over a prompt, and for new tokens that come after what is kept."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from loopt.attention import Context, Heads, split_and_rotate
from loopt.generation.cache import Place


class PromptSlot(NamedTuple):
    """Where a run of a layer puts the keys and values of a prompt."""

    place: Place
    lengths: Tensor
    """[B]: tokens of each row; what follows them is padding, which later tokens overwrite."""


class NewTokens(NamedTuple):
    """Which tokens are new, and how far back they look."""

    positions: Tensor
    """[B, T]: of each new token in its sequence."""
    start: int | None
    """Where all rows begin, if that is one place and the host knows it."""
    far: int
    """How many places to look at."""
    mask: Tensor | None
    """[B, 1, T, far]: which of these a token may see; None: all of them."""

    @classmethod
    def at(cls, positions: Tensor, starts: list[int] | None, length: int) -> NewTokens:
        """Returns new tokens at positions [B, T]. Where the host does not know the ``starts`` of the rows, all
        ``length`` places of the cache are looked at, so that shapes do not change."""
        tokens = positions.shape[1]
        far = length if starts is None else max(starts) + tokens
        one_place = starts is not None and len(set(starts)) == 1
        seen = torch.arange(far, device=positions.device)
        mask = None if one_place and tokens == 1 else (seen <= positions[..., None])[:, None]  # [B, 1, T, far]
        return cls(positions, starts[0] if starts and one_place else None, far, mask)


class StepSlot(NamedTuple):
    """Where a run of a layer keeps what it knows, and which tokens are new."""

    place: Place
    new: NewTokens


def attend_prompt(qkv: Tensor, context: Context, heads: Heads) -> Tensor:
    """Has the tokens of prompts look at each other, and keeps their keys and values: [N, H + 2K, E] -> [N, H, E]."""
    place, lengths = context.cache
    (shape,) = context.packing
    q, k, v = _by_heads(qkv, context, heads, shape)  # [B, H or K, T, E]
    tokens, room = shape[1], place.keys.shape[2]
    if place.window is None:
        place.keys[:, :, :tokens] = k[:, :, :room]
        place.values[:, :, :tokens] = v[:, :, :room]
        mask = None
    else:
        last, slots = lengths[:, None] - 1, torch.arange(room, device=q.device)  # [B, 1] and [S]
        kept = (last - (last - slots) % room).clamp(min=0)  # [B, S]: the latest token that belongs in each slot
        index = kept[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3])
        place.keys.copy_(k.gather(2, index))
        place.values.copy_(v.gather(2, index))
        ago = torch.arange(tokens, device=q.device)[:, None] - torch.arange(tokens, device=q.device)
        mask = (ago >= 0) & (ago < place.window)  # [T, T]
    return _mix(q, k, v, heads, mask, causal=mask is None)


def attend_new(qkv: Tensor, context: Context, heads: Heads) -> Tensor:
    """Keeps the keys and values of new tokens, and has these look at all that is kept of their row up to themselves:
    [N, H + 2K, E] -> [N, H, E]."""
    place, new = context.cache
    (shape,) = context.packing
    q, k, v = _by_heads(qkv, context, heads, shape)  # [B, H or K, T, E]
    tokens, room = shape[1], place.keys.shape[2]
    if new.start is not None and new.start % room + tokens <= room:
        place.keys.narrow(2, new.start % room, tokens).copy_(k)
        place.values.narrow(2, new.start % room, tokens).copy_(v)
    else:
        rows = torch.arange(shape[0], device=q.device)[:, None]  # [B, 1]
        slots = new.positions % room  # [B, T]
        place.keys[rows, :, slots] = k.transpose(1, 2)
        place.values[rows, :, slots] = v.transpose(1, 2)
    far = min(new.far, room)
    mask = None if new.mask is None else new.mask[..., :far]
    return _mix(q, place.keys.narrow(2, 0, far), place.values.narrow(2, 0, far), heads, mask, causal=False)


def _by_heads(qkv: Tensor, context: Context, heads: Heads, shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns rotated queries, keys and values as [B, H or K, T, E]."""
    q, k, v = split_and_rotate(qkv.unflatten(0, shape), heads, context.rope)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, T, H, E] -> [B, H, T, E]


def _mix(q: Tensor, k: Tensor, v: Tensor, heads: Heads, mask: Tensor | None, causal: bool) -> Tensor:
    grouped = heads.keys < heads.queries
    mixed = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=heads.scale, enable_gqa=grouped)
    return mixed.transpose(1, 2).flatten(0, 1)  # [B, H, T, E] -> [B * T, H, E]
