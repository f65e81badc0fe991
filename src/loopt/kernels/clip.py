"""Clipping that writes a gradient only where there is something to clip."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _scale_or_zero(values, factor, count, BLOCK: tl.constexpr):
    by = tl.load(factor)
    if by != 1.0:  # so the usual step reads one number here, and no gradient
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(values + at, mask=at < count, other=0.0)
        tl.store(values + at, tl.where(by == 0.0, 0.0, value * by), mask=at < count)


def scale_or_zero(tensor: Tensor, factor: Tensor) -> None:
    """Multiply a contiguous tensor by a factor, a 0-dim tensor; by 0 it is zero, whatever it was."""
    with torch.cuda.device_of(tensor):  # Triton launches on the current device
        count = tensor.numel()
        _scale_or_zero[(triton.cdiv(count, BLOCK),)](tensor, factor, count, BLOCK, num_warps=8)
