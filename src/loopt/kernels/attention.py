"""Causal attention for short sequences and narrow heads, rotary positions included, as one Triton kernel each way.

The general kernels (cuDNN, flash) are made for long sequences and wide heads. At the sizes of the reasoning tasks, 256
tokens and heads of 16 to 64, one program can hold a whole head: queries, keys and values are read once, in the layout
the projection wrote them, turned by their positions on the way in, and nothing in between goes through memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopt.model import Parts, Rotation

MAX_TOKENS = 256
HEAD_DIMS = (16, 32, 64)


@triton.jit
def _load_turned(pointer, cos, sin, rows, valid, row_stride, E: tl.constexpr, ROPE: tl.constexpr):
    """Rows of queries or keys [ROWS, E], turned by their positions, in the type they are stored in."""
    columns = tl.arange(0, E)
    at = rows[:, None] * row_stride
    x = tl.load(pointer + at + columns[None, :], mask=valid[:, None], other=0.0)
    if ROPE:
        half: tl.constexpr = E // 2
        partner = tl.load(pointer + at + ((columns + half) % E)[None, :], mask=valid[:, None], other=0.0)
        angle_at = rows[:, None] * E + columns[None, :]
        c = tl.load(cos + angle_at, mask=valid[:, None], other=0.0)
        s = tl.load(sin + angle_at, mask=valid[:, None], other=0.0)
        x = (x.to(tl.float32) * c + partner.to(tl.float32) * s).to(x.dtype)
    return x


@triton.jit
def _store_turned_back(pointer, grad, cos, sin, rows, valid, row_stride, E: tl.constexpr, ROPE: tl.constexpr):
    """Write the gradient [ROWS, E] of turned rows as that of the rows before turning."""
    columns = tl.arange(0, E)
    if ROPE:
        half: tl.constexpr = E // 2
        R: tl.constexpr = grad.shape[0]
        pairs = tl.arange(0, half)
        angle_at = rows[:, None] * E + half + pairs[None, :]  # the second half, where the sine's sign is its own
        c = tl.load(cos + angle_at, mask=valid[:, None], other=0.0)
        s = tl.load(sin + angle_at, mask=valid[:, None], other=0.0)
        first, second = tl.split(tl.permute(tl.reshape(grad, (R, 2, half)), (0, 2, 1)))  # [R, half] each
        turned = tl.join(first * c + second * s, second * c - first * s)  # [R, half, 2]
        grad = tl.reshape(tl.permute(turned, (0, 2, 1)), (R, E))
    out = pointer + rows[:, None] * row_stride + columns[None, :]
    tl.store(out, grad.to(pointer.dtype.element_ty), mask=valid[:, None])


@triton.jit
def _forward_kernel(
    qkv, cos, sin, out, lse, T, H, scale,
    E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M queries of one head against all keys up to them."""
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    stride = 3 * H * E  # from one token to the next in qkv
    base = batch.to(tl.int64) * T * stride + head * E
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    q = _load_turned(qkv + base, cos, sin, rows, rows < T, stride, E, ROPE)
    best = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, E), tl.float32)
    for start in range(0, tl.minimum((block + 1) * BLOCK_M, T), BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k = _load_turned(qkv + base + H * E, cos, sin, keys, keys < T, stride, E, ROPE)
        v = _load_turned(qkv + base + 2 * H * E, cos, sin, keys, keys < T, stride, E, False)
        scores = tl.dot(q, tl.trans(k)) * scale  # in units of log2, so that exp2 serves
        scores = tl.where(keys[None, :] <= rows[:, None], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(best - higher)
        total = total * shrink + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(v.dtype), v, mixed * shrink[:, None])
        best = higher
    at = batch.to(tl.int64) * T * H * E + rows[:, None] * (H * E) + head * E + tl.arange(0, E)[None, :]
    tl.store(out + at, (mixed / total[:, None]).to(out.dtype.element_ty), mask=(rows < T)[:, None])
    tl.store(lse + (batch * H + head) * T + rows, best + tl.log2(total), mask=rows < T)


@triton.jit
def _backward_rows(q, do, delta, log_total, rows, k, v, keys, T, scale, dq, dk, dv):
    """What a block of queries and a block of keys give each other: adds to dq, dk and dv."""
    scores = tl.dot(q, tl.trans(k)) * scale
    seen = (keys[None, :] <= rows[:, None]) & (rows < T)[:, None]
    weights = tl.where(seen, tl.exp2(scores - log_total[:, None]), 0.0)  # [rows, keys]
    dv = tl.dot(tl.trans(weights.to(do.dtype)), do, dv)
    ds = (weights * (tl.dot(do, tl.trans(v)) - delta[:, None])).to(q.dtype)
    dk = tl.dot(tl.trans(ds), q, dk)
    dq = tl.dot(ds, k, dq)
    return dq, dk, dv


@triton.jit
def _load_queries(
    qkv, cos, sin, out, lse, grad_out, base, out_base, lse_base, rows, T, H, E: tl.constexpr, ROPE: tl.constexpr
):
    """Queries, the gradient at their outputs, and the two numbers per query that the softmax's gradient needs."""
    q = _load_turned(qkv + base, cos, sin, rows, rows < T, 3 * H * E, E, ROPE)
    do = _load_turned(grad_out + out_base, cos, sin, rows, rows < T, H * E, E, False)
    o = _load_turned(out + out_base, cos, sin, rows, rows < T, H * E, E, False)
    delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
    log_total = tl.load(lse + lse_base + rows, mask=rows < T, other=0.0)
    return q, do, delta, log_total


@triton.jit
def _backward_kernel(
    qkv, cos, sin, out, lse, grad_out, grad_qkv, T, H, scale,
    E: tl.constexpr, EARLY: tl.constexpr, LATE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_LATE: tl.constexpr,
    ROPE: tl.constexpr,
):  # fmt: skip
    """One program: a whole head. All queries stay in registers while the keys pass by, so no sum is shared. They are
    kept as two blocks, EARLY and LATE, since late keys are seen by late queries alone."""
    head, batch = tl.program_id(0), tl.program_id(1)
    stride = 3 * H * E
    base = batch.to(tl.int64) * T * stride + head * E
    out_base = batch.to(tl.int64) * T * H * E + head * E
    lse_base = (batch * H + head) * T
    unit = scale * 0.6931471805599453  # scale is in units of log2, the gradient's is not
    early = tl.arange(0, EARLY)
    late = EARLY + tl.arange(0, LATE)
    q0, do0, delta0, total0 = _load_queries(
        qkv, cos, sin, out, lse, grad_out, base, out_base, lse_base, early, T, H, E, ROPE
    )
    q1, do1, delta1, total1 = _load_queries(
        qkv, cos, sin, out, lse, grad_out, base, out_base, lse_base, late, T, H, E, ROPE
    )
    dq0 = tl.zeros((EARLY, E), tl.float32)
    dq1 = tl.zeros((LATE, E), tl.float32)
    for start in range(0, EARLY, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k = _load_turned(qkv + base + H * E, cos, sin, keys, keys < T, stride, E, ROPE)
        v = _load_turned(qkv + base + 2 * H * E, cos, sin, keys, keys < T, stride, E, False)
        dk = tl.zeros((BLOCK_N, E), tl.float32)
        dv = tl.zeros((BLOCK_N, E), tl.float32)
        dq0, dk, dv = _backward_rows(q0, do0, delta0, total0, early, k, v, keys, T, scale, dq0, dk, dv)
        dq1, dk, dv = _backward_rows(q1, do1, delta1, total1, late, k, v, keys, T, scale, dq1, dk, dv)
        _store_turned_back(grad_qkv + base + H * E, dk * unit, cos, sin, keys, keys < T, stride, E, ROPE)
        _store_turned_back(grad_qkv + base + 2 * H * E, dv, cos, sin, keys, keys < T, stride, E, False)
    for start in range(EARLY, T, BLOCK_LATE):
        keys = start + tl.arange(0, BLOCK_LATE)
        k = _load_turned(qkv + base + H * E, cos, sin, keys, keys < T, stride, E, ROPE)
        v = _load_turned(qkv + base + 2 * H * E, cos, sin, keys, keys < T, stride, E, False)
        dk = tl.zeros((BLOCK_LATE, E), tl.float32)
        dv = tl.zeros((BLOCK_LATE, E), tl.float32)
        dq1, dk, dv = _backward_rows(q1, do1, delta1, total1, late, k, v, keys, T, scale, dq1, dk, dv)
        _store_turned_back(grad_qkv + base + H * E, dk * unit, cos, sin, keys, keys < T, stride, E, ROPE)
        _store_turned_back(grad_qkv + base + 2 * H * E, dv, cos, sin, keys, keys < T, stride, E, False)
    _store_turned_back(grad_qkv + base, dq0 * unit, cos, sin, early, early < T, stride, E, ROPE)
    _store_turned_back(grad_qkv + base, dq1 * unit, cos, sin, late, late < T, stride, E, ROPE)


LOG2_E = 1.4426950408889634


@torch.library.custom_op("loopt::short_attention", mutates_args=())
def short_attention(
    qkv: Tensor, cos: Tensor, sin: Tensor, counts: Sequence[int], lengths: Sequence[int], scale: float, rope: bool
) -> tuple[Tensor, Tensor]:
    """qkv [N, 3, H, E] of so many sequences of these lengths, one after the other -> mixed values [N, H, E], and what
    the backward pass needs [N, H], of each sequence by heads."""
    N, _, H, E = qkv.shape
    out = torch.empty(N, H, E, dtype=qkv.dtype, device=qkv.device)
    lse = torch.empty(N, H, dtype=torch.float32, device=qkv.device)
    for here, B, T in _pieces(counts, lengths):
        block_m = min(FORWARD_ROWS, max(16, triton.next_power_of_2(T)))
        _forward_kernel[(triton.cdiv(T, block_m), H, B)](
            qkv[here], cos, sin, out[here], lse[here], T, H, scale * LOG2_E,
            E, block_m, min(FORWARD_KEYS, block_m), rope,
            num_warps=FORWARD_WARPS, num_stages=FORWARD_STAGES,
        )  # fmt: skip
    return out, lse


@short_attention.register_fake
def _(qkv, cos, sin, counts, lengths, scale, rope):
    N, _, H, E = qkv.shape
    return qkv.new_empty(N, H, E), qkv.new_empty(N, H, dtype=torch.float32)


@torch.library.custom_op("loopt::short_attention_backward", mutates_args=())
def short_attention_backward(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    counts: Sequence[int],
    lengths: Sequence[int],
    scale: float,
    rope: bool,
) -> Tensor:
    _, _, H, E = qkv.shape
    grad = torch.empty_like(qkv)
    for here, B, T in _pieces(counts, lengths):
        early = max(16, triton.next_power_of_2(T) // 2)
        late = triton.next_power_of_2(max(16, T - early))
        _backward_kernel[(H, B)](
            qkv[here], cos, sin, out[here], lse[here], grad_out[here], grad[here], T, H, scale * LOG2_E,
            E, early, late, min(BACKWARD_BLOCK, early), min(BACKWARD_BLOCK, late), rope,
            num_warps=BACKWARD_WARPS, num_stages=BACKWARD_STAGES,
        )  # fmt: skip
    return grad


def _pieces(counts: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[slice, int, int]]:
    """Where each part lies among all tokens, how many sequences it has, and of which length."""
    start = 0
    for count, length in zip(counts, lengths, strict=True):
        yield slice(start, start + count * length), count, length
        start += count * length


BACKWARD_BLOCK, BACKWARD_WARPS, BACKWARD_STAGES = 64, 4, 1
FORWARD_ROWS, FORWARD_KEYS, FORWARD_WARPS, FORWARD_STAGES = 64, 64, 4, 1


@short_attention_backward.register_fake
def _(qkv, cos, sin, out, lse, grad_out, counts, lengths, scale, rope):
    return torch.empty_like(qkv)


def _setup(ctx, inputs, output) -> None:
    qkv, cos, sin, ctx.counts, ctx.lengths, ctx.scale, ctx.rope = inputs
    ctx.save_for_backward(qkv, cos, sin, *output)
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_out, grad_lse):
    grad = short_attention_backward(
        *ctx.saved_tensors, grad_out.contiguous(), ctx.counts, ctx.lengths, ctx.scale, ctx.rope
    )
    return grad, None, None, None, None, None, None


short_attention.register_autograd(_backward, setup_context=_setup)


def attend(qkv: Tensor, parts: Parts, rotation: Rotation | None, scale: float) -> Tensor:
    """What ``loopt.model.attend`` computes, for up to MAX_TOKENS tokens and heads of HEAD_DIMS."""
    cos, sin = rotation or (qkv, qkv)  # not looked at without rotation
    counts, lengths = zip(*parts, strict=True)
    return short_attention(qkv.contiguous(), cos, sin, counts, lengths, scale, rotation is not None)[0]
