"""Adafactor's update of a matrix as four Triton kernels, and of a vector as one.

A matrix is gone through three times, since nothing can be scaled before all of it is measured: the gradient is squared
and summed by rows and columns; the update that follows from these sums is measured, and so are the weights; the update
is made. That reads and writes 24 bytes a weight, which is what takes the time. A sum that several programs have a part
in is written down in parts, and whoever needs it adds them up in the same order: atomic additions come in any order,
and a run that resumes from a checkpoint would be rounded differently.

A matrix is [n, m]. Each of across * down programs has COLUMNS of its columns, and of its rows ``tiles`` times ROWS.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.distributed.tensor import DTensor

ROWS, COLUMNS = tl.constexpr(16), tl.constexpr(128)
STAGES = tl.constexpr(4)  # three tiles are on their way while one is worked on
PARTS = tl.constexpr(32)  # of sums by rows or columns, added up at a time
MANY_PARTS = tl.constexpr(1024)  # of a single sum
VECTOR = tl.constexpr(4096)  # entries at a time
PROGRAMS = 512
"""At most, of a matrix that is not very wide: as many as an H200 has room for at a time, four a multiprocessor."""


@triton.jit
def _tile(tile, n, m):
    """Of this program's tile: how far its entries are from the matrix's first, which exist, its rows, which exist."""
    rows = (tl.program_id(1) + tile * tl.num_programs(1)) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    exist = (rows < n)[:, None] & (columns < m)[None, :]
    return rows.to(tl.int64)[:, None] * m + columns[None, :], exist, rows, rows < n


@triton.jit
def _newest(step, beta2_decay):
    """The share of this step's gradient in the running means; ``step`` counts those before it."""
    return tl.exp2(beta2_decay * tl.log2(tl.load(step) + 1))


@triton.jit
def _gradient(grad, factor, at, exist):
    """Multiplied by the factor; by 0 it is zero, whatever it was."""
    return tl.where(factor == 0.0, 0.0, tl.load(grad + at, mask=exist, other=0.0) * factor)


@triton.jit
def _sum_of(parts, count):
    total = tl.zeros((MANY_PARTS,), tl.float32)
    for start in range(0, count, MANY_PARTS):
        at = start + tl.arange(0, MANY_PARTS)
        total += tl.load(parts + at, mask=at < count, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def _rates(lr, update_square, weight_square, clip_threshold, weight_decay, scale_eps, SCALED: tl.constexpr):
    """What to multiply weights and update with, given the means of their squares."""
    rate = tl.load(lr).to(tl.float32)
    keep = 1 - rate * weight_decay
    # Not-a-number goes through, as it does where there is no kernel.
    take = rate / tl.maximum(tl.sqrt(update_square) / clip_threshold, 1.0, propagate_nan=tl.PropagateNan.ALL)
    if SCALED:
        take *= tl.maximum(tl.sqrt(weight_square), scale_eps, propagate_nan=tl.PropagateNan.ALL)
    return keep, take


@triton.jit(do_not_specialize=["n", "tiles"])
def _sum_squares(grad, grad_factor, row_sums, column_sums, n, m, tiles):
    """The first time: squares of the gradient, summed over this program's columns and over its rows."""
    factor = tl.load(grad_factor)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in tl.range(0, tiles, num_stages=STAGES):
        at, exist, rows, rows_exist = _tile(tile, n, m)
        g = _gradient(grad, factor, at, exist)
        total += g * g
        tl.store(row_sums + tl.program_id(0) * n + rows, tl.sum(g * g, 1), mask=rows_exist)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(column_sums + tl.program_id(1) * m + columns, tl.sum(total, 0), mask=columns < m)


@triton.jit
def _moved_mean(mean, parts, count, length, at, squares, newest, grad_eps):
    """Running means [COLUMNS] of so many squares, whose sums are ``parts`` [count, length]."""
    total = tl.zeros((PARTS, COLUMNS), tl.float32)
    for start in range(0, count, PARTS):
        part = start + tl.arange(0, PARTS)
        exist = (part < count)[:, None] & (at < length)[None, :]
        total += tl.load(parts + part[:, None] * length + at[None, :], mask=exist, other=0.0)
    before = tl.load(mean + at, mask=at < length, other=0.0)
    return before + (tl.sum(total, 0) / squares + grad_eps - before) * newest


@triton.jit(do_not_specialize=["n", "m", "row_parts", "column_parts"])
def _move_means(
    row_sums, column_sums, row_var, col_var, row_var_sums, step, n, m, row_parts, column_parts, beta2_decay, grad_eps
):
    """The running means: the first programs have COLUMNS rows each, and the others COLUMNS columns."""
    newest = _newest(step, beta2_decay)
    with_rows = tl.cdiv(n, COLUMNS)
    program = tl.program_id(0)
    if program < with_rows:
        rows = program * COLUMNS + tl.arange(0, COLUMNS)
        row = _moved_mean(row_var, row_sums, row_parts, n, rows, m, newest, grad_eps)
        tl.store(row_var + rows, row, mask=rows < n)
        tl.store(row_var_sums + program, tl.sum(tl.where(rows < n, row, 0.0), 0))
    else:
        columns = (program - with_rows) * COLUMNS + tl.arange(0, COLUMNS)
        column = _moved_mean(col_var, column_sums, column_parts, m, columns, n, newest, grad_eps)
        tl.store(col_var + columns, column, mask=columns < m)


@triton.jit
def _column_scale(col_var, m):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    return tl.rsqrt(tl.load(col_var + columns, mask=columns < m, other=1.0))[None, :]


@triton.jit
def _row_scale(row_var, mean, rows, exist):
    # A square root of its own: that of row * column underflows where gradients are zero.
    return tl.rsqrt(tl.load(row_var + rows, mask=exist, other=1.0) / mean)[:, None]


@triton.jit(do_not_specialize=["n", "tiles"])
def _measure(
    weights, grad, grad_factor, row_var, col_var, row_var_sums, update_sums, weight_sums, step, n, m, tiles,
    SCALED: tl.constexpr,
):  # fmt: skip
    """The second time: squares of update and weights, each in one sum a program."""
    row_mean = _sum_of(row_var_sums, tl.cdiv(n, COLUMNS)) / n
    column_scale, factor = _column_scale(col_var, m), tl.load(grad_factor)
    update_square = tl.zeros((ROWS, COLUMNS), tl.float32)
    weight_square = tl.zeros((ROWS, COLUMNS), tl.float32)
    for back in tl.range(0, tiles, num_stages=STAGES):
        # From the last tile to the first, and the next time forward again: what was read last is still in the cache.
        at, exist, rows, rows_exist = _tile(tiles - 1 - back, n, m)
        g = _gradient(grad, factor, at, exist)
        if SCALED:
            w = tl.load(weights + at, mask=exist, other=0.0)
            weight_square += w * w
        update = g * _row_scale(row_var, row_mean, rows, rows_exist) * column_scale
        update_square += update * update
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(update_sums + program, tl.sum(update_square))
    if SCALED:
        tl.store(weight_sums + program, tl.sum(weight_square))
    if program == 0:
        tl.store(step, tl.load(step) + 1)  # here, where nobody reads it


@triton.jit(do_not_specialize=["n", "tiles"])
def _apply(
    weights, grad, grad_factor, row_var, col_var, row_var_sums, update_sums, weight_sums, lr, n, m, tiles,
    clip_threshold, weight_decay, scale_eps, SCALED: tl.constexpr,
):  # fmt: skip
    """The third time: the update."""
    programs = tl.num_programs(0) * tl.num_programs(1)
    update_square = _sum_of(update_sums, programs) / n / m
    weight_square = _sum_of(weight_sums, programs) / n / m if SCALED else 0.0
    keep, take = _rates(lr, update_square, weight_square, clip_threshold, weight_decay, scale_eps, SCALED)
    row_mean = _sum_of(row_var_sums, tl.cdiv(n, COLUMNS)) / n
    column_scale, factor = _column_scale(col_var, m), tl.load(grad_factor)
    for tile in tl.range(0, tiles, num_stages=STAGES):
        at, exist, rows, rows_exist = _tile(tile, n, m)
        g = _gradient(grad, factor, at, exist)
        w = tl.load(weights + at, mask=exist, other=0.0)
        update = g * _row_scale(row_var, row_mean, rows, rows_exist) * column_scale
        tl.store(weights + at, w * keep - update * take, mask=exist)


@triton.jit
def _vector_part(grad, factor, variance, at, n, newest, grad_eps):
    """Running means and update of these entries."""
    g = _gradient(grad, factor, at, at < n)
    before = tl.load(variance + at, mask=at < n, other=0.0)
    mean = before + (g * g + grad_eps - before) * newest
    return mean, g * tl.rsqrt(tl.where(at < n, mean, 1.0))


@triton.jit(do_not_specialize=["n"])
def _update_vector(
    weights, grad, grad_factor, variance, step, lr, n,
    beta2_decay, grad_eps, clip_threshold, weight_decay, scale_eps, SCALED: tl.constexpr,
):  # fmt: skip
    """All of it, in one program: vectors are short."""
    newest, factor = _newest(step, beta2_decay), tl.load(grad_factor)
    update_square = tl.zeros((VECTOR,), tl.float32)
    weight_square = tl.zeros((VECTOR,), tl.float32)
    for start in range(0, n, VECTOR):
        at = start + tl.arange(0, VECTOR)
        _, update = _vector_part(grad, factor, variance, at, n, newest, grad_eps)
        update_square += update * update
        w = tl.load(weights + at, mask=at < n, other=0.0)
        weight_square += w * w
    keep, take = _rates(
        lr, tl.sum(update_square, 0) / n, tl.sum(weight_square, 0) / n,
        clip_threshold, weight_decay, scale_eps, SCALED,
    )  # fmt: skip
    for start in range(0, n, VECTOR):
        at = start + tl.arange(0, VECTOR)
        mean, update = _vector_part(grad, factor, variance, at, n, newest, grad_eps)
        w = tl.load(weights + at, mask=at < n, other=0.0)
        tl.store(weights + at, w * keep - update * take, mask=at < n)
        tl.store(variance + at, mean, mask=at < n)
    tl.store(step, tl.load(step) + 1)


def fits(parameter: Tensor, grad: Tensor) -> bool:
    """Whether ``update`` is for such tensors."""
    return (
        parameter.ndim <= 2
        and parameter.numel() > 0
        and all(
            x.is_cuda and x.dtype == torch.float32 and x.is_contiguous() and not isinstance(x, DTensor)
            for x in (parameter, grad)
        )
    )


def update(
    parameter: Tensor,
    grad: Tensor,
    state: dict[str, Tensor],
    grad_factor: Tensor | None,
    lr: float | Tensor,
    beta2_decay: float,
    eps: tuple[float, float],
    clip_threshold: float,
    weight_decay: float,
    scale_parameter: bool,
) -> None:
    """What ``loopt.training.adafactor`` computes in plain torch, of tensors that fit."""
    grad_eps, scale_eps = eps
    if not (isinstance(lr, Tensor) and lr.device == parameter.device):
        lr = parameter.new_full((), float(lr))
    if grad_factor is None:
        grad_factor = parameter.new_ones(())
    decay = beta2_decay, grad_eps
    sizes = clip_threshold, weight_decay, scale_eps, scale_parameter
    with torch.cuda.device_of(parameter):  # Triton launches on the current device
        if parameter.ndim == 2:
            _update_matrix(parameter, grad, state, grad_factor, lr, decay, sizes)
        else:
            _update_vector[(1,)](
                parameter, grad, grad_factor, state["variance"], state["step"], lr, parameter.numel(), *decay, *sizes,
                num_warps=8,
            )  # fmt: skip


def _update_matrix(
    parameter: Tensor,
    grad: Tensor,
    state: dict[str, Tensor],
    grad_factor: Tensor,
    lr: Tensor,
    decay: tuple[float, float],
    sizes: tuple[float, float, float, bool],
) -> None:
    n, m = parameter.shape
    step, scaled = state["step"], sizes[-1]
    across, down = triton.cdiv(m, COLUMNS.value), triton.cdiv(n, ROWS.value)
    tiles = triton.cdiv(down, max(1, PROGRAMS // across))
    down = triton.cdiv(down, tiles)
    with_rows, with_columns = triton.cdiv(n, COLUMNS.value), across

    # Not pieces of one tensor: where they do not begin at a multiple of 16 bytes, kernels would be compiled again.
    row_sums, column_sums = parameter.new_empty(across, n), parameter.new_empty(down, m)
    update_sums, weight_sums = parameter.new_empty(down, across), parameter.new_empty(down, across)
    means = state["row_var"], state["col_var"], parameter.new_empty(with_rows)

    _sum_squares[(across, down)](grad, grad_factor, row_sums, column_sums, n, m, tiles)
    _move_means[(with_rows + with_columns,)](row_sums, column_sums, *means, step, n, m, across, down, *decay)
    _measure[(across, down)](parameter, grad, grad_factor, *means, update_sums, weight_sums, step, n, m, tiles, scaled)
    _apply[(across, down)](parameter, grad, grad_factor, *means, update_sums, weight_sums, lr, n, m, tiles, *sizes)
