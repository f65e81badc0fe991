"""Gradient clipping that writes a gradient only where there is something to clip."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _scale_or_zero(values, factor, count, BLOCK: tl.constexpr):
    by = tl.load(factor)
    if by != 1.0:  # usually it is 1, and no gradient is read
        offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(values + offsets, mask=offsets < count, other=0.0)
        tl.store(values + offsets, tl.where(by == 0.0, 0.0, value * by), mask=offsets < count)


def scale_or_zero(tensor: Tensor, factor: Tensor) -> None:
    """Multiplies a contiguous tensor by a 0-dim tensor; a factor of 0 gives 0, whatever was there."""
    with torch.cuda.device_of(tensor):  # Triton launches on the current device
        count = tensor.numel()
        _scale_or_zero[(triton.cdiv(count, BLOCK),)](tensor, factor, count, BLOCK, num_warps=8)
