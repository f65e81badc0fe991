"""Causal attention with rotary positions for short sequences and narrow heads: a Triton kernel each way.

The general kernels (cuDNN, flash) are made for long sequences and wide heads, and take one length at a time. These take
all sequences of a batch in one launch, whatever their lengths: a table tells every program its sequence. Queries, keys
and values are read where the projection wrote them, and rotated (RoPE) as they are loaded.

Rotated rows are stored in pairs, columns 0, half, 1, half + 1 and so on: each half is then read once, and the product
of a query and a key is the same in any order. Rows past the end of a sequence repeat its last row, so that loads need
no mask; they are not stored, and have weight 0 in the backward pass.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopt.attention import Context, Heads

MAX_TOKENS = 256
HEAD_DIMS = (16, 32, 64)
LOG2_E = 1.4426950408889634  # times the scale, so that exp2 takes the place of exp; LN_2 undoes it in gradients
LN_2 = tl.constexpr(0.6931471805599453)
STEP = 32  # keys (forward) or queries (backward) per step of a program's loop


@triton.jit
def _rows(start, T, R: tl.constexpr):
    """Returns R rows from ``start`` on, and the row to read for each, which is not past the end."""
    rows = start + tl.arange(0, R)
    return rows, tl.minimum(rows, T - 1)


@triton.jit
def _load(pointer, read, stride: tl.constexpr, E: tl.constexpr):
    return tl.load(pointer + (read * stride)[:, None] + tl.arange(0, E)[None, :])


@triton.jit
def _store(pointer, x, rows, T, stride: tl.constexpr, E: tl.constexpr):
    at = pointer + (rows * stride)[:, None] + tl.arange(0, E)[None, :]
    tl.store(at, x.to(pointer.dtype.element_ty), mask=(rows < T)[:, None])


@triton.jit
def _pin_layout(x):
    """Returns x as it is, and keeps the compiler from converting to a product's layout before this point: done right
    after the loads, that would take the angles through shared memory, too."""
    if x.dtype.primitive_bitwidth == 16:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)
    return x


@triton.jit
def _load_rotated(pointer, cos, sin, read, stride: tl.constexpr, E: tl.constexpr, ROPE: tl.constexpr):
    """Loads rows of queries or keys [R, E], rotated by their positions, in pairs."""
    if ROPE:
        half: tl.constexpr = E // 2
        at = (read * stride)[:, None] + tl.arange(0, half)[None, :]
        angle_at = (read * E + half)[:, None] + tl.arange(0, half)[
            None, :
        ]  # the second half: in the first, sines are negated
        a = tl.load(pointer + at).to(tl.float32)  # [R, half]
        b = tl.load(pointer + half + at).to(tl.float32)
        c, s = tl.load(cos + angle_at), tl.load(sin + angle_at)
        kind = pointer.dtype.element_ty
        rotated = tl.join((a * c - b * s).to(kind), (b * c + a * s).to(kind))  # [R, half, 2]
        x = _pin_layout(tl.reshape(rotated, (read.shape[0], E)))
    else:
        x = _load(pointer, read, stride, E)
    return x


@triton.jit
def _store_unrotated(pointer, x, cos, sin, rows, read, T, stride: tl.constexpr, E: tl.constexpr, ROPE: tl.constexpr):
    """Stores the gradient [R, E] of rotated rows, in pairs, as that of the rows before rotation."""
    if ROPE:
        half: tl.constexpr = E // 2
        at = pointer + (rows * stride)[:, None] + tl.arange(0, half)[None, :]
        angle_at = (read * E + half)[:, None] + tl.arange(0, half)[None, :]
        a, b = tl.split(tl.reshape(x, (rows.shape[0], half, 2)))  # [R, half] each
        c, s = tl.load(cos + angle_at), tl.load(sin + angle_at)
        tl.store(at, (a * c + b * s).to(pointer.dtype.element_ty), mask=(rows < T)[:, None])
        tl.store(at + half, (b * c - a * s).to(pointer.dtype.element_ty), mask=(rows < T)[:, None])
    else:
        _store(pointer, x, rows, T, stride, E)


@triton.jit
def _forward_step(
    q, rows, row_max, row_sum, acc, qkv, cos, sin, start, T, scale,
    H: tl.constexpr, E: tl.constexpr, STEP: tl.constexpr, ROPE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Adds STEP keys to the online softmax of queries [BLOCK, E]."""
    keys, read = _rows(start, T, STEP)
    k = _load_rotated(qkv + H * E, cos, sin, read, 3 * H * E, E, ROPE)
    v = _load(qkv + 2 * H * E, read, 3 * H * E, E)
    scores = tl.dot(q, tl.trans(k))  # [BLOCK, STEP]
    if MASKED:
        scores = tl.where(keys[None, :] <= rows[:, None], scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - new_max[:, None])
    rescale = tl.exp2(row_max - new_max)
    row_sum = row_sum * rescale + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None])
    return new_max, row_sum, acc


@triton.jit(do_not_specialize=["N"])
def _forward_kernel(
    qkv, cos, sin, out, lse, table, N, scale,
    H: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    """Computes the attention of BLOCK queries of one head over all keys up to them."""
    head = tl.program_id(0) % H
    table += tl.program_id(0) // H * 3
    first, T, start = tl.load(table).to(tl.int64), tl.load(table + 1), tl.load(table + 2)
    qkv += first * (3 * H * E) + head * E
    rows, read = _rows(start, T, BLOCK)
    q = _load_rotated(qkv, cos, sin, read, 3 * H * E, E, ROPE)
    row_max = tl.full((BLOCK,), float("-inf"), tl.float32)
    row_sum = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, E), tl.float32)
    for before in range(0, start, STEP):
        row_max, row_sum, acc = _forward_step(
            q, rows, row_max, row_sum, acc, qkv, cos, sin, before, T, scale, H, E, STEP, ROPE, False
        )
    for near in range(start, tl.minimum(start + BLOCK, T), STEP):
        row_max, row_sum, acc = _forward_step(
            q, rows, row_max, row_sum, acc, qkv, cos, sin, near, T, scale, H, E, STEP, ROPE, True
        )
    _store(out + first * (H * E) + head * E, acc / row_sum[:, None], rows, T, H * E, E)
    tl.store(lse + head.to(tl.int64) * N + first + rows, row_max + tl.log2(row_sum), mask=rows < T)


@triton.jit
def _to_lanes(x, E: tl.constexpr, STEP: tl.constexpr, BY_ROWS: tl.constexpr, BY_COLUMNS: tl.constexpr):
    """Returns a product [STEP, E] as one row, in the order in which BY_ROWS x BY_COLUMNS warps hold it (tiles of 16 x
    8, four numbers a thread): stored and loaded so, it needs no shared memory."""
    x = tl.reshape(x, (STEP // 16 // BY_ROWS, BY_ROWS, 2, 8, E // 8 // BY_COLUMNS, BY_COLUMNS, 4, 2))
    return tl.reshape(tl.permute(x, (0, 4, 1, 5, 3, 6, 2, 7)), (STEP * E,))


@triton.jit
def _from_lanes(x, E: tl.constexpr, STEP: tl.constexpr, BY_ROWS: tl.constexpr, BY_COLUMNS: tl.constexpr):
    """Undoes ``_to_lanes``."""
    x = tl.reshape(x, (STEP // 16 // BY_ROWS, E // 8 // BY_COLUMNS, BY_ROWS, BY_COLUMNS, 8, 4, 2, 2))
    return tl.reshape(tl.permute(x, (0, 2, 6, 4, 1, 3, 5, 7)), (STEP, E))


@triton.jit
def _backward_step(
    k, v, dk, dv, keys, queries, grad_out, lses, deltas, dq_sums, grad_qkv, cos, sin, first_key, start, T,
    scale, H: tl.constexpr, E: tl.constexpr, STEP: tl.constexpr, BY_ROWS: tl.constexpr, BY_COLUMNS: tl.constexpr,
    ROPE: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Adds the gradients between BLOCK keys and STEP queries to dk, dv and, in dq_sums, dq. LAST: the queries are among
    these keys and see none after them, so that dq is complete."""
    rows, read = _rows(start, T, STEP)
    so_far = _from_lanes(tl.load(dq_sums + start * E, mask=first_key > 0, other=0.0), E, STEP, BY_ROWS, BY_COLUMNS)
    q = _pin_layout(_load(queries, read, 3 * H * E, E))
    do = _pin_layout(_load(grad_out, read, H * E, E))
    lse, delta = tl.load(lses + rows), tl.load(deltas + rows)
    scores = tl.dot(k, tl.trans(q))  # [BLOCK, STEP]: as dk and dv want them
    weights = tl.exp2(scores * scale - lse[None, :])
    if LAST:
        weights = tl.where(keys[:, None] <= rows[None, :], weights, 0.0)
    dp = tl.dot(v, tl.trans(do))
    dv = tl.dot(weights.to(do.dtype), do, dv)
    ds = (weights * (dp - delta[None, :])).to(q.dtype)
    dk = tl.dot(ds, q, dk)
    dq = tl.dot(tl.trans(ds), k) + so_far
    if LAST:  # overwrites the queries, which all threads have read: the products above took them from shared memory
        _store_unrotated(grad_qkv, dq * (scale * LN_2), cos, sin, rows, read, T, 3 * H * E, E, ROPE)
    else:
        tl.store(dq_sums + start * E, _to_lanes(dq, E, STEP, BY_ROWS, BY_COLUMNS))
    return dk, dv


@triton.jit(do_not_specialize=["N"])
def _backward_kernel(
    qkv, cos, sin, out, lse, grad_out, grad_qkv, scratch, table, N, scale,
    H: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
    BY_ROWS: tl.constexpr, BY_COLUMNS: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    """Computes the gradients of one head of a sequence, BLOCK keys after BLOCK keys, each with the queries from there
    on. Sums of dq are in scratch, added in a fixed order. Until dq is stored, its place holds the rotated queries."""
    head = tl.program_id(0) % H
    table += tl.program_id(0) // H * 3
    first, T, scratch_block = tl.load(table).to(tl.int64), tl.load(table + 1), tl.load(table + 2).to(tl.int64)
    qkv += first * (3 * H * E) + head * E
    grad_qkv += first * (3 * H * E) + head * E
    out += first * (H * E) + head * E
    grad_out += first * (H * E) + head * E
    lse += head.to(tl.int64) * N + first
    padded = (T + BLOCK - 1) // BLOCK * BLOCK
    scratch += (scratch_block * (BLOCK * H) + head * padded) * (E + 2)
    dq_sums = scratch + tl.arange(0, STEP * E)  # of [padded, E]; lses and deltas are [padded] each
    lses = scratch + padded * E
    deltas = lses + padded
    for start in range(0, T, BLOCK):
        rows, read = _rows(start, T, BLOCK)
        if ROPE:
            _store(grad_qkv, _load_rotated(qkv, cos, sin, read, 3 * H * E, E, ROPE), rows, T, 3 * H * E, E)
        do, o = _load(grad_out, read, H * E, E), _load(out, read, H * E, E)
        tl.store(deltas + rows, tl.sum(do.to(tl.float32) * o.to(tl.float32), 1))
        tl.store(lses + rows, tl.load(lse + rows, mask=rows < T, other=float("inf")))  # weight 0 past the end
    tl.debug_barrier()  # other threads will read what was written
    queries = grad_qkv if ROPE else qkv
    for start in range(0, T, BLOCK):
        keys, keys_read = _rows(start, T, BLOCK)
        k = _load_rotated(qkv + H * E, cos, sin, keys_read, 3 * H * E, E, ROPE)
        v = _load(qkv + 2 * H * E, keys_read, 3 * H * E, E)
        dk = tl.zeros((BLOCK, E), tl.float32)
        dv = tl.zeros((BLOCK, E), tl.float32)
        if BLOCK == STEP:  # without a loop the compiler sees what the mask keeps
            dk, dv = _backward_step(
                k, v, dk, dv, keys, queries, grad_out, lses, deltas, dq_sums, grad_qkv, cos, sin, start, start, T,
                scale, H, E, STEP, BY_ROWS, BY_COLUMNS, ROPE, True,
            )  # fmt: skip
        else:
            for near in range(start, tl.minimum(start + BLOCK, T), STEP):
                dk, dv = _backward_step(
                    k, v, dk, dv, keys, queries, grad_out, lses, deltas, dq_sums, grad_qkv, cos, sin, start, near, T,
                    scale, H, E, STEP, BY_ROWS, BY_COLUMNS, ROPE, True,
                )  # fmt: skip
        for after in range(start + BLOCK, T, STEP):
            dk, dv = _backward_step(
                k, v, dk, dv, keys, queries, grad_out, lses, deltas, dq_sums, grad_qkv, cos, sin, start, after, T,
                scale, H, E, STEP, BY_ROWS, BY_COLUMNS, ROPE, False,
            )  # fmt: skip
        _store_unrotated(grad_qkv + H * E, dk * (scale * LN_2), cos, sin, keys, keys_read, T, 3 * H * E, E, ROPE)
        _store(grad_qkv + 2 * H * E, dv, keys, T, 3 * H * E, E)
        tl.debug_barrier()


def _forward_tile(lengths: Sequence[int]) -> tuple[int, int]:
    """Returns the queries of a program and its warps. On an H200, 8 heads: 64 with 4 warps took 69 µs where 32 with 2
    took 85 (256 sequences of 256 tokens, heads of 16), and 95 for 97 (1025 of 13 to 134 tokens, heads of 32). But where
    sequences have at most 32 tokens, half of 64 would be idle: 7.5 µs for 5.4."""
    return (32, 2) if max(lengths) <= 32 else (64, 4)


def _backward_tile(counts: Sequence[int], lengths: Sequence[int], E: int) -> tuple[int, int]:
    """Returns the keys of a program at a time and its warps. For the sequences above, of 256 tokens, 64 with 4 warps
    took 172 µs where 32 with 2 took 183; 176 tokens are level. Blocks of 64 hold more that is masked or past the end,
    and of short sequences, 55 tokens in the mean, took 231 µs: 32 with 2 warps took 212 and, with 1, 191. But heads of
    16 want 2 (11.6 µs for 13.2, 256 of 32 tokens), and for heads of 64 one warp has too few registers."""
    if sum(count * T for count, T in zip(counts, lengths, strict=True)) >= 128 * sum(counts):
        return 64, 4
    return 32, 1 if E == 32 else 2


def _warp_layout(E: int, warps: int) -> tuple[int, int]:
    """Returns how many warps a product [STEP, E] has along rows and columns: the compiler halves the longer side."""
    by_rows = by_columns = 1
    while by_rows * by_columns < warps:
        if STEP // by_rows > E // by_columns:
            by_rows *= 2
        else:
            by_columns *= 2
    return by_rows, by_columns


def _sequences(counts: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Returns first token and length of each sequence, the longest first: what takes longest should not start last."""
    sizes = [T for count, T in zip(counts, lengths, strict=True) for _ in range(count)]
    firsts = itertools.accumulate(sizes, initial=0)
    return sorted(zip(firsts, sizes, strict=False), key=lambda sequence: -sequence[1])


# Tables are cached for good, since captured CUDA graphs hold their addresses. None can be made during a capture: its
# copy waits for the device, which CUDA refuses then. The warm-up steps before a capture make it.


@functools.cache
def _forward_table(counts: tuple[int, ...], lengths: tuple[int, ...], block: int, device: torch.device) -> Tensor:
    """Returns [programs of a head, 3]: first token of the sequence, its length, the program's first query."""
    rows = [(first, T, start) for first, T in _sequences(counts, lengths) for start in reversed(range(0, T, block))]
    return torch.tensor(rows, dtype=torch.int32, device=device)


@functools.cache
def _backward_table(
    counts: tuple[int, ...], lengths: tuple[int, ...], block: int, device: torch.device
) -> tuple[Tensor, int]:
    """Returns [programs of a head, 3], first token of the sequence, its length, its first block in scratch; and the
    number of blocks."""
    rows, blocks = [], 0
    for first, T in _sequences(counts, lengths):
        rows.append((first, T, blocks))
        blocks += triton.cdiv(T, block)
    return torch.tensor(rows, dtype=torch.int32, device=device), blocks


@torch.library.custom_op("loopt::short_attention", mutates_args=())
def short_attention(
    qkv: Tensor, cos: Tensor, sin: Tensor, counts: Sequence[int], lengths: Sequence[int], scale: float, rope: bool
) -> tuple[Tensor, Tensor]:
    """Returns the attention [N, H, E] of qkv [N, 3, H, E], which holds ``counts`` sequences of ``lengths``, and its
    log-sum-exp [H, N] for the backward pass."""
    N, _, H, E = qkv.shape
    out = torch.empty(N, H, E, dtype=qkv.dtype, device=qkv.device)
    lse = torch.empty(H, N, dtype=torch.float32, device=qkv.device)
    block, warps = _forward_tile(lengths)
    table = _forward_table(tuple(counts), tuple(lengths), block, qkv.device)
    with torch.cuda.device_of(qkv):  # Triton launches on the current device
        _forward_kernel[(len(table) * H,)](
            qkv, cos, sin, out, lse, table, N, scale * LOG2_E, H, E, block, STEP, rope, num_warps=warps, num_stages=1
        )
    return out, lse


@short_attention.register_fake
def _(qkv, cos, sin, counts, lengths, scale, rope):
    N, _, H, E = qkv.shape
    return qkv.new_empty(N, H, E), qkv.new_empty(H, N, dtype=torch.float32)


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
    """Returns the gradient of qkv [N, 3, H, E]."""
    N, _, H, E = qkv.shape
    grad = torch.empty_like(qkv)
    block, warps = _backward_tile(counts, lengths, E)
    table, blocks = _backward_table(tuple(counts), tuple(lengths), block, qkv.device)
    scratch = torch.empty(blocks * block * H * (E + 2), dtype=torch.float32, device=qkv.device)
    with torch.cuda.device_of(qkv):
        _backward_kernel[(len(table) * H,)](
            qkv, cos, sin, out, lse, grad_out, grad, scratch, table, N, scale * LOG2_E,
            H, E, block, STEP, *_warp_layout(E, warps), rope, num_warps=warps, num_stages=1,
        )  # fmt: skip
    return grad


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


def attend(qkv: Tensor, context: Context, heads: Heads) -> Tensor:
    """Computes ``loopt.attention.attend`` for up to MAX_TOKENS tokens, heads of HEAD_DIMS, as many of keys as of
    queries, and a positive scale."""
    qkv = qkv.contiguous().unflatten(1, (3, heads.queries))  # [N, 3 * H, E] -> [N, 3, H, E]
    cos, sin = context.rope or (qkv, qkv)  # not read without rotary positions
    counts, lengths = zip(*context.packing, strict=True)
    return short_attention(qkv, cos, sin, counts, lengths, heads.scale, context.rope is not None)[0]
