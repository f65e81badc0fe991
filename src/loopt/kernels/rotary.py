"""Rotary positions (RoPE) for the general attention kernels (cuDNN, flash), as one Triton kernel for both passes.

The forward pass splits queries, keys and values and rotates the first two, so that attention saves these three for its
backward pass and not what the projection wrote. The backward pass rotates their gradients back and merges them. Either
way every number is read once and written once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopt.attention import Context, Heads, Rope, attend_with

HEAD_DIMS = (16, 32, 64, 128, 256)
ELEMENTS, WARPS = 2048, 4  # a program has so many of queries, of keys and of values: 16 a thread


@triton.jit(do_not_specialize=["T", "count"])
def _rotate_kernel(
    q, k, v, to_q, to_k, to_v, cos, sin, T, count,
    sequence_stride, token_stride, head_stride, to_sequence_stride, to_token_stride, to_head_stride,
    H: tl.constexpr, E: tl.constexpr, ROWS: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Rotates q and k and copies v, [B, T, H, E] each, into to_q, to_k and to_v. Each three share their strides;
    ``count`` is B * T * H, of which a program has ROWS."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = (rows < count)[:, None]
    tokens, heads = rows // H, (rows % H).to(tl.int64)
    sequences, positions = (tokens // T).to(tl.int64), tokens % T

    HALF: tl.constexpr = E // 2
    first, all_columns = tl.arange(0, HALF)[None, :], tl.arange(0, E)[None, :]
    angles = positions[:, None] * E + HALF + first  # the second half: in the first, sines are negated
    c = tl.load(cos + angles, mask=mask, other=0.0)
    s = tl.load(sin + angles, mask=mask, other=0.0)
    if BACK:
        s = -s

    offsets = (sequences * sequence_stride + positions * token_stride + heads * head_stride)[:, None]
    q1 = tl.load(q + offsets + first, mask=mask, other=0.0)
    q2 = tl.load(q + offsets + HALF + first, mask=mask, other=0.0)
    k1 = tl.load(k + offsets + first, mask=mask, other=0.0)
    k2 = tl.load(k + offsets + HALF + first, mask=mask, other=0.0)
    values = tl.load(v + offsets + all_columns, mask=mask, other=0.0)

    # The tables, and so the products, are float32; a store rounds to its tensor's type.
    to_offsets = (sequences * to_sequence_stride + positions * to_token_stride + heads * to_head_stride)[:, None]
    tl.store(to_q + to_offsets + first, q1 * c - q2 * s, mask=mask)
    tl.store(to_q + to_offsets + HALF + first, q2 * c + q1 * s, mask=mask)
    tl.store(to_k + to_offsets + first, k1 * c - k2 * s, mask=mask)
    tl.store(to_k + to_offsets + HALF + first, k2 * c + k1 * s, mask=mask)
    tl.store(to_v + to_offsets + all_columns, values, mask=mask)


def _rotate(tensors: Sequence[Tensor], into: Sequence[Tensor], cos: Tensor, sin: Tensor, back: bool) -> None:
    """Rotates queries and keys, or with ``back`` their gradients, and copies values: [B, T, H, E] each."""
    B, T, H, E = tensors[0].shape
    rows = ELEMENTS // E
    with torch.cuda.device_of(cos):  # Triton launches on the current device
        _rotate_kernel[(triton.cdiv(B * T * H, rows),)](
            *tensors, *into, cos, sin, T, B * T * H, *tensors[0].stride()[:3], *into[0].stride()[:3],
            H, E, rows, back, num_warps=WARPS,
        )  # fmt: skip


@torch.library.custom_op("loopt::split_and_rotate", mutates_args=())
def split_and_rotate(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Splits fused QKV [B, T, 3, H, E] and applies rotary positions to queries and keys: [B, T, H, E] each."""
    split = qkv.contiguous().unbind(2)
    q, k, v = (torch.empty_like(one, memory_format=torch.contiguous_format) for one in split)
    _rotate(split, (q, k, v), cos, sin, back=False)
    return q, k, v


@split_and_rotate.register_fake
def _(qkv, cos, sin):
    B, T, _, H, E = qkv.shape
    return tuple(qkv.new_empty(B, T, H, E) for _ in range(3))


@torch.library.custom_op("loopt::merge_rotated_gradients", mutates_args=())
def merge_rotated_gradients(grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns the gradient of ``split_and_rotate``'s qkv [B, T, 3, H, E], from those of its outputs."""
    grads = [grad_q, grad_k, grad_v]
    if len({grad.stride() for grad in grads}) > 1 or grad_q.stride(-1) != 1:  # attention's own share theirs
        grads = [grad.contiguous() for grad in grads]
    B, T, H, E = grad_q.shape
    together = grad_q.new_empty(B, T, 3, H, E)
    _rotate(grads, together.unbind(2), cos, sin, back=True)
    return together


@merge_rotated_gradients.register_fake
def _(grad_q, grad_k, grad_v, cos, sin):
    B, T, H, E = grad_q.shape
    return grad_q.new_empty(B, T, 3, H, E)


def _setup(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[1:])


def _backward(ctx, grad_q, grad_k, grad_v):
    return merge_rotated_gradients(grad_q, grad_k, grad_v, *ctx.saved_tensors), None, None


split_and_rotate.register_autograd(_backward, setup_context=_setup)


def attend(qkv: Tensor, context: Context, heads: Heads) -> Tensor:
    """Computes ``loopt.attention.attend`` for heads of HEAD_DIMS, as many of keys as of queries, with rotary
    positions."""
    return attend_with(_split, qkv, context, heads)


def _split(qkv: Tensor, heads: Heads, rope: Rope | None) -> tuple[Tensor, Tensor, Tensor]:
    assert rope is not None
    return split_and_rotate(qkv.unflatten(2, (3, heads.queries)), *rope)  # [B, T, 3 * H, E] -> [B, T, 3, H, E]
