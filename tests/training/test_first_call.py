"""The first call of a compiled function, when the compiler tries variants of its kernels on the real tensors, computes
what every other call does. It did not, once, for a loss that was written over the logits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import fresh_cache

from loopt.runs.config import RegularizerConfig
from loopt.scoring.readout import compiled_once
from loopt.training.chunked_loss import chunked_loss
from loopt.training.regularizer import _compiled as compiled_regularizer
from loopt.training.regularizer import add_gradient

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True, params=[False, True], ids=["", "no room for copies"])
def nothing_compiled_yet(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.compiler.reset()
    for cached in (compiled_once, compiled_regularizer):
        cached.cache_clear()
    torch.manual_seed(0)
    with fresh_cache():
        if request.param:  # the compiler then tries kernels on the tensors themselves, and puts back what was there
            torch.cuda.reset_peak_memory_stats()
        yield


def relative(found: Tensor, wanted: Tensor) -> float:
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


@pytest.mark.parametrize("words", [75, 1000, 50_304])
def test_of_the_loss(words: int) -> None:
    x, readout = torch.randn(128, 64, device="cuda"), torch.randn(words, 64, device="cuda") / 8
    targets, weights = torch.randint(words, (128,), device="cuda"), torch.rand(128, device="cuda")
    found = []
    for compiled in (True, False):
        inputs = [tensor.bfloat16().requires_grad_() for tensor in (x, readout)]
        loss = chunked_loss(*inputs, targets, weights, compiled=compiled)
        found.append((loss, *torch.autograd.grad(loss, inputs)))
    asked = torch.zeros(words, dtype=torch.bool, device="cuda").scatter(0, targets, True)
    for ours, theirs in zip(*found, strict=True):
        assert relative(ours, theirs) < 1e-2
    for rows in (asked, ~asked):  # of other words the gradient is small, and there are many more
        if rows.any():
            assert relative(found[0][2][rows], found[1][2][rows]) < 2e-2


def test_of_the_regularizers_gradient() -> None:
    layers = [{"up": torch.randn(300, 200, device="cuda")} for _ in range(4)]
    ends = []
    for compiled in (True, False):
        grads = [{"up": torch.ones(300, 200, device="cuda")} for _ in range(4)]
        add_gradient(layers, grads, RegularizerConfig(2, 3.0), compiled)
        ends.append([grad["up"] for grad in grads])
    torch.testing.assert_close(*ends)
