"""Adafactor's kernels compute what its plain update does, within float32's rounding, and the same in every run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from loopt.training.adafactor import Adafactor

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

VECTORS: list[tuple[int, ...]] = [(), (1,), (37,), (4096,), (10_000,)]
MATRICES: list[tuple[int, ...]] = [
    (1, 1),
    (3, 5),
    (1, 300),
    (300, 1),
    (17, 300),
    (1000, 33),
    (128, 512),
    (4096, 512),
    (40, 70_000),
    (50_304, 256),
]


def trained(
    shape: tuple[int, ...], dtype: torch.dtype, steps: int = 5, **options: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns weights and state after some steps, with gradients of very different sizes over steps and columns, and a
    row without any."""
    kernels = pytest.importorskip("loopt.kernels.adafactor")
    generator = torch.Generator("cuda").manual_seed(1)
    weights = nn.Parameter(torch.randn(shape, device="cuda", generator=generator).to(dtype))
    optimizer = Adafactor([weights], compiled=True, **options)
    for step in range(steps):
        grad = torch.randn(shape, device="cuda", generator=generator) * 10.0 ** (step % 5 - 2)
        if shape:
            grad *= torch.logspace(-3, 1, shape[-1], device="cuda")
            grad[2:3] = 0
        weights.grad = grad.to(dtype)
        assert kernels.fits(weights, weights.grad) == (dtype == torch.float32)
        optimizer.step()
    return weights.detach(), optimizer.state[weights]


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "clip_threshold": 0.5}, {"scale_parameter": False}])
@pytest.mark.parametrize("shape", VECTORS + MATRICES)
def test_agrees_with_the_plain_update_in_float64(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    lr = torch.tensor(0.05, device="cuda")
    start, _ = trained(shape, torch.float64, steps=0)
    found, state = trained(shape, torch.float32, lr=lr, **options)
    wanted, exact = trained(shape, torch.float64, lr=lr, **options)
    assert (found - wanted).norm() < 1e-4 * (wanted - start).norm()
    assert state.keys() == exact.keys()
    for key, tensor in state.items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor.double(), exact[key].double(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("shape", [(10_000,), (1000, 33), (5000, 700)])
def test_is_the_same_in_every_run(shape: tuple[int, ...]) -> None:
    (first, state), (again, its_state) = (trained(shape, torch.float32, lr=0.05, weight_decay=0.1) for _ in range(2))
    assert torch.equal(first, again)
    for key, tensor in state.items():
        assert torch.equal(tensor, its_state[key])


@pytest.mark.parametrize("shape", [(37,), (17, 300)])
def test_without_gradient_and_rate_nothing_moves(shape: tuple[int, ...]) -> None:
    weights = nn.Parameter(torch.randn(shape, device="cuda"))
    before = weights.detach().clone()
    optimizer = Adafactor([weights], lr=0.0, weight_decay=0.1, compiled=True)
    for _ in range(3):
        weights.grad = torch.zeros_like(weights)
        optimizer.step()
    assert torch.equal(weights, before)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("shape", [(37,), (17, 300)])
def test_what_is_not_finite_shows_as_it_does_in_the_plain_update(shape: tuple[int, ...], value: float) -> None:
    ends = []
    for compiled in (True, False):
        weights = nn.Parameter(torch.ones(shape, device="cuda"))
        weights.grad = torch.ones_like(weights)
        weights.grad.view(-1)[3] = value
        Adafactor([weights], compiled=compiled).step()
        ends.append(weights.isnan())
    assert torch.equal(*ends)
    assert ends[0].any()


def test_what_does_not_fit() -> None:
    kernels = pytest.importorskip("loopt.kernels.adafactor")
    matrix = torch.ones(4, 6, device="cuda")
    assert kernels.fits(matrix, matrix)
    assert not kernels.fits(matrix, matrix.bfloat16())
    assert not kernels.fits(matrix.T, matrix.T.contiguous())
    assert not kernels.fits(matrix.cpu(), matrix.cpu())
    assert not kernels.fits(matrix[None], matrix[None])
