"""Gradients are clipped as torch clips them, and where they are not finite nothing moves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from loopt.training.update import update

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SHAPES = [(), (1,), (4096,), (4097,), (300, 700)]


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator("cuda").manual_seed(0)
    made = [nn.Parameter(torch.randn(shape, device="cuda", generator=generator)) for shape in SHAPES]
    for parameter in made:
        parameter.grad = torch.randn(parameter.shape, device="cuda", generator=generator)
    return made


@pytest.mark.parametrize("clip_norm", [1.0, 1e6])
def test_clips_as_torch_does(clip_norm: float) -> None:
    ours, theirs = parameters(), parameters()
    loss, lr = torch.zeros((), device="cuda"), torch.tensor(1.0, device="cuda")
    norm, finite = update(ours, [torch.optim.SGD(ours)], loss, lr, clip_norm, compiled=True)
    wanted = torch.nn.utils.clip_grad_norm_(theirs, clip_norm)
    torch.optim.SGD(theirs, lr=1.0).step()
    assert finite
    torch.testing.assert_close(norm, wanted)
    torch.testing.assert_close([p.detach() for p in ours], [p.detach() for p in theirs])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [1.0, 0.25, 0.0])
def test_scales_or_zeroes(factor: float, dtype: torch.dtype) -> None:
    kernels = pytest.importorskip("loopt.kernels.clip")
    for shape in SHAPES:
        tensor = torch.randn(shape, device="cuda").to(dtype)
        tensor.flatten()[-1] = torch.nan
        wanted = tensor * factor if factor else torch.zeros_like(tensor)
        kernels.scale_or_zero(tensor, torch.tensor(factor, device="cuda"))
        torch.testing.assert_close(tensor, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_moves_nothing(value: float) -> None:
    moved, still = parameters(), parameters()
    grad = moved[-1].grad
    assert grad is not None
    grad[5, 5] = value
    loss, lr = torch.zeros((), device="cuda"), torch.tensor(1.0, device="cuda")
    _, finite = update(moved, [torch.optim.SGD(moved)], loss, lr, 1.0, compiled=True)
    assert not finite
    for one, other in zip(moved, still, strict=True):
        assert torch.equal(one, other)
