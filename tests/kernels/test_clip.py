"""Gradients are clipped as torch clips them, and are zero where they are not to be used."""

from __future__ import annotations

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("factor", [1.0, 0.25, 0.0])
def test_scales_or_zeroes(factor: float) -> None:
    kernels = pytest.importorskip("loopt.kernels.clip")
    shapes = [(), (1,), (4096,), (4097,), (300, 700)]
    for dtype in (torch.float32, torch.bfloat16):
        tensors = [torch.randn(shape, device="cuda").to(dtype) for shape in shapes]
        tensors[-1][5, 5] = torch.nan
        wanted = [tensor * factor if factor else torch.zeros_like(tensor) for tensor in tensors]
        kernels.scale_or_zero(tensors, torch.tensor(factor, device="cuda"))
        torch.testing.assert_close(tensors, wanted, rtol=0, atol=0, equal_nan=True)
