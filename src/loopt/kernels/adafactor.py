"""Adafactor's update as Triton kernels: four for a matrix, one for a vector.

A matrix is read in three passes, since each needs sums over all of it from the one before: squares of the gradient by
rows and columns, then squares of the update and of the weights, then the update itself. The time goes into memory
traffic, 24 bytes a weight. A sum over several programs is stored as partial sums, which are added up in a fixed order:
atomic additions come in any order, and a run that resumes from a checkpoint would be rounded differently.

A matrix is [n, m]. Each of across * down programs has COLUMNS of its columns, and ``tiles`` tiles of ROWS rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.distributed.tensor import DTensor

ROWS, COLUMNS = tl.constexpr(16), tl.constexpr(128)
STAGES = tl.constexpr(4)  # three tiles are loading while one is worked on
PARTIAL_BLOCK = tl.constexpr(32)  # partial row or column sums added up at a time
SCALAR_BLOCK = tl.constexpr(1024)  # partial sums of a scalar added up at a time
VECTOR_BLOCK = tl.constexpr(4096)  # entries of a vector at a time
PROGRAMS = 512  # unless a matrix is very wide, at most: what an H200 runs at a time, four a multiprocessor


@triton.jit
def _tile(tile, n, m):
    """Returns offsets, mask, rows and row mask of one of this program's tiles."""
    rows = (tl.program_id(1) + tile * tl.num_programs(1)) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (rows < n)[:, None] & (columns < m)[None, :]
    return rows.to(tl.int64)[:, None] * m + columns[None, :], mask, rows, rows < n


@triton.jit
def _one_minus_beta2(step, beta2_decay):
    """Returns the share of this step's gradient in the running means; ``step`` counts the steps before it."""
    return tl.exp2(beta2_decay * tl.log2(tl.load(step) + 1))


@triton.jit
def _gradient(grad, factor, offsets, mask):
    """Loads the gradient times the clipping factor; a factor of 0 gives 0, whatever the gradient."""
    return tl.where(factor == 0.0, 0.0, tl.load(grad + offsets, mask=mask, other=0.0) * factor)


@triton.jit
def _add_up(partial_sums, count):
    total = tl.zeros((SCALAR_BLOCK,), tl.float32)
    for start in range(0, count, SCALAR_BLOCK):
        offsets = start + tl.arange(0, SCALAR_BLOCK)
        total += tl.load(partial_sums + offsets, mask=offsets < count, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def _rates(lr, update_square, weight_square, clip_threshold, weight_decay, scale_eps, SCALED: tl.constexpr):
    """Returns the factors of weights and update, given the means of their squares."""
    rate = tl.load(lr).to(tl.float32)
    keep = 1 - rate * weight_decay
    # NaN propagates, as in plain torch.
    take = rate / tl.maximum(tl.sqrt(update_square) / clip_threshold, 1.0, propagate_nan=tl.PropagateNan.ALL)
    if SCALED:
        take *= tl.maximum(tl.sqrt(weight_square), scale_eps, propagate_nan=tl.PropagateNan.ALL)
    return keep, take


@triton.jit(do_not_specialize=["n", "tiles"])
def _sum_squares(grad, grad_factor, row_sums, column_sums, n, m, tiles):
    """Sums squares of the gradient over this program's columns and over its rows: the first pass."""
    factor = tl.load(grad_factor)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in tl.range(0, tiles, num_stages=STAGES):
        offsets, mask, rows, row_mask = _tile(tile, n, m)
        g = _gradient(grad, factor, offsets, mask)
        total += g * g
        tl.store(row_sums + tl.program_id(0) * n + rows, tl.sum(g * g, 1), mask=row_mask)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(column_sums + tl.program_id(1) * m + columns, tl.sum(total, 0), mask=columns < m)


@triton.jit
def _updated_mean(mean, partial_sums, count, length, offsets, squares, one_minus_beta2, grad_eps):
    """Returns running means [COLUMNS], updated with ``squares`` squares, whose ``partial_sums`` are [count, length]."""
    total = tl.zeros((PARTIAL_BLOCK, COLUMNS), tl.float32)
    for start in range(0, count, PARTIAL_BLOCK):
        index = start + tl.arange(0, PARTIAL_BLOCK)
        mask = (index < count)[:, None] & (offsets < length)[None, :]
        total += tl.load(partial_sums + index[:, None] * length + offsets[None, :], mask=mask, other=0.0)
    before = tl.load(mean + offsets, mask=offsets < length, other=0.0)
    return before + (tl.sum(total, 0) / squares + grad_eps - before) * one_minus_beta2


@triton.jit(do_not_specialize=["n", "m", "row_sum_count", "column_sum_count"])
def _update_means(
    row_sums, column_sums, row_var, col_var, row_var_sums, step, n, m, row_sum_count, column_sum_count,
    beta2_decay, grad_eps,
):  # fmt: skip
    """Updates the running means: the first programs have COLUMNS rows each, and the others COLUMNS columns."""
    one_minus_beta2 = _one_minus_beta2(step, beta2_decay)
    row_programs = tl.cdiv(n, COLUMNS)
    program = tl.program_id(0)
    if program < row_programs:
        rows = program * COLUMNS + tl.arange(0, COLUMNS)
        row = _updated_mean(row_var, row_sums, row_sum_count, n, rows, m, one_minus_beta2, grad_eps)
        tl.store(row_var + rows, row, mask=rows < n)
        tl.store(row_var_sums + program, tl.sum(tl.where(rows < n, row, 0.0), 0))
    else:
        columns = (program - row_programs) * COLUMNS + tl.arange(0, COLUMNS)
        column = _updated_mean(col_var, column_sums, column_sum_count, m, columns, n, one_minus_beta2, grad_eps)
        tl.store(col_var + columns, column, mask=columns < m)


@triton.jit
def _column_scale(col_var, m):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    return tl.rsqrt(tl.load(col_var + columns, mask=columns < m, other=1.0))[None, :]


@triton.jit
def _row_scale(row_var, mean, rows, mask):
    # Rows and columns have a square root each: row * column underflows where gradients are zero.
    return tl.rsqrt(tl.load(row_var + rows, mask=mask, other=1.0) / mean)[:, None]


@triton.jit(do_not_specialize=["n", "tiles"])
def _measure(
    weights, grad, grad_factor, row_var, col_var, row_var_sums, update_sums, weight_sums, step, n, m, tiles,
    SCALED: tl.constexpr,
):  # fmt: skip
    """Sums squares of update and weights, one partial sum a program: the second pass."""
    row_mean = _add_up(row_var_sums, tl.cdiv(n, COLUMNS)) / n
    column_scale, factor = _column_scale(col_var, m), tl.load(grad_factor)
    update_square = tl.zeros((ROWS, COLUMNS), tl.float32)
    weight_square = tl.zeros((ROWS, COLUMNS), tl.float32)
    for back in tl.range(0, tiles, num_stages=STAGES):
        # Backwards, and in the next pass forwards again: what was read last is still in the cache.
        offsets, mask, rows, row_mask = _tile(tiles - 1 - back, n, m)
        g = _gradient(grad, factor, offsets, mask)
        if SCALED:
            w = tl.load(weights + offsets, mask=mask, other=0.0)
            weight_square += w * w
        update = g * _row_scale(row_var, row_mean, rows, row_mask) * column_scale
        update_square += update * update
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(update_sums + program, tl.sum(update_square))
    if SCALED:
        tl.store(weight_sums + program, tl.sum(weight_square))
    if program == 0:
        tl.store(step, tl.load(step) + 1)  # in this kernel no program reads it


@triton.jit(do_not_specialize=["n", "tiles"])
def _apply(
    weights, grad, grad_factor, row_var, col_var, row_var_sums, update_sums, weight_sums, lr, n, m, tiles,
    clip_threshold, weight_decay, scale_eps, SCALED: tl.constexpr,
):  # fmt: skip
    """Applies the update: the third pass."""
    programs = tl.num_programs(0) * tl.num_programs(1)
    update_square = _add_up(update_sums, programs) / n / m
    weight_square = _add_up(weight_sums, programs) / n / m if SCALED else 0.0
    keep, take = _rates(lr, update_square, weight_square, clip_threshold, weight_decay, scale_eps, SCALED)
    row_mean = _add_up(row_var_sums, tl.cdiv(n, COLUMNS)) / n
    column_scale, factor = _column_scale(col_var, m), tl.load(grad_factor)
    for tile in tl.range(0, tiles, num_stages=STAGES):
        offsets, mask, rows, row_mask = _tile(tile, n, m)
        g = _gradient(grad, factor, offsets, mask)
        w = tl.load(weights + offsets, mask=mask, other=0.0)
        update = g * _row_scale(row_var, row_mean, rows, row_mask) * column_scale
        tl.store(weights + offsets, w * keep - update * take, mask=mask)


@triton.jit
def _vector_tile(grad, factor, variance, offsets, n, one_minus_beta2, grad_eps):
    """Returns the new running means and the update of a tile of a vector."""
    g = _gradient(grad, factor, offsets, offsets < n)
    before = tl.load(variance + offsets, mask=offsets < n, other=0.0)
    mean = before + (g * g + grad_eps - before) * one_minus_beta2
    return mean, g * tl.rsqrt(tl.where(offsets < n, mean, 1.0))


@triton.jit(do_not_specialize=["n"])
def _update_vector(
    weights, grad, grad_factor, variance, step, lr, n,
    beta2_decay, grad_eps, clip_threshold, weight_decay, scale_eps, SCALED: tl.constexpr,
):  # fmt: skip
    """Updates a vector in one program, since vectors are short."""
    one_minus_beta2, factor = _one_minus_beta2(step, beta2_decay), tl.load(grad_factor)
    update_square = tl.zeros((VECTOR_BLOCK,), tl.float32)
    weight_square = tl.zeros((VECTOR_BLOCK,), tl.float32)
    for start in range(0, n, VECTOR_BLOCK):
        offsets = start + tl.arange(0, VECTOR_BLOCK)
        _, update = _vector_tile(grad, factor, variance, offsets, n, one_minus_beta2, grad_eps)
        update_square += update * update
        w = tl.load(weights + offsets, mask=offsets < n, other=0.0)
        weight_square += w * w
    keep, take = _rates(
        lr, tl.sum(update_square, 0) / n, tl.sum(weight_square, 0) / n,
        clip_threshold, weight_decay, scale_eps, SCALED,
    )  # fmt: skip
    for start in range(0, n, VECTOR_BLOCK):
        offsets = start + tl.arange(0, VECTOR_BLOCK)
        mean, update = _vector_tile(grad, factor, variance, offsets, n, one_minus_beta2, grad_eps)
        w = tl.load(weights + offsets, mask=offsets < n, other=0.0)
        tl.store(weights + offsets, w * keep - update * take, mask=offsets < n)
        tl.store(variance + offsets, mean, mask=offsets < n)
    tl.store(step, tl.load(step) + 1)


def fits(parameter: Tensor, grad: Tensor) -> bool:
    """Tells whether ``update`` can take a parameter and its gradient."""
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
    """Updates a parameter and its state as ``loopt.training.adafactor`` does in plain torch, where they fit."""
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
    row_programs, column_programs = triton.cdiv(n, COLUMNS.value), across

    # Not slices of one tensor: Triton would compile again for those that are not aligned to 16 bytes.
    row_sums, column_sums = parameter.new_empty(across, n), parameter.new_empty(down, m)
    update_sums, weight_sums = parameter.new_empty(down, across), parameter.new_empty(down, across)
    means = state["row_var"], state["col_var"], parameter.new_empty(row_programs)

    _sum_squares[(across, down)](grad, grad_factor, row_sums, column_sums, n, m, tiles)
    _update_means[(row_programs + column_programs,)](row_sums, column_sums, *means, step, n, m, across, down, *decay)
    _measure[(across, down)](parameter, grad, grad_factor, *means, update_sums, weight_sums, step, n, m, tiles, scaled)
    _apply[(across, down)](parameter, grad, grad_factor, *means, update_sums, weight_sums, lr, n, m, tiles, *sizes)
