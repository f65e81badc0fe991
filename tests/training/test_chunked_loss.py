from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.tasks import IGNORE
from loopt.training.chunked_loss import chunked_loss
from loopt.training.task_learner import weighted_loss

on_a_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def example(rows: int, words: int, width: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Hidden states, readout, targets of which some are ignored, weights."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    readout = torch.randn(words, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    targets = torch.randint(words, (rows,), generator=generator)
    targets[torch.rand(rows, generator=generator) < 0.3] = IGNORE
    weights = torch.rand(rows, generator=generator, dtype=torch.float64).to(torch.promote_types(dtype, torch.float32))
    return [x, readout, targets, weights]


def plain(x: Tensor, readout: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    logits = F.linear(x, readout)
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (F.cross_entropy(exact, targets, reduction="none", ignore_index=IGNORE) * weights).sum()


def gradients(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, inputs)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 20),
    words=st.integers(1, 30),
    chunk_bytes=st.integers(1, 8 * 700),
    scale=st.floats(-3, 3),
    seed=st.integers(0, 2**31),
)
def test_it_is_the_cross_entropy_however_it_is_cut(
    rows: int, words: int, chunk_bytes: int, scale: float, seed: int
) -> None:
    inputs = example(rows, words, seed=seed)
    found, wanted = chunked_loss(*inputs, chunk_bytes=chunk_bytes), plain(*inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(gradients(scale * found, *inputs[:2]), gradients(scale * wanted, *inputs[:2]), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-13)
    with torch.no_grad():
        torch.testing.assert_close(chunked_loss(*inputs, chunk_bytes=chunk_bytes), wanted, rtol=1e-12, atol=1e-12)


def test_large_logits_do_not_overflow() -> None:
    x, readout, targets, weights = example(6, 9, dtype=torch.float32)
    inputs = [(1e3 * x).detach().requires_grad_(), readout, targets, weights]
    found, wanted = chunked_loss(*inputs), plain(*inputs)
    assert found.isfinite()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradients(found, *inputs[:2]), gradients(wanted, *inputs[:2]))


def test_with_nothing_to_predict_there_is_nothing_to_learn() -> None:
    x, readout, targets, weights = example(6, 9)
    loss = chunked_loss(x, readout, torch.full_like(targets, IGNORE), weights)
    assert loss == 0
    assert all(bool((grad == 0).all()) for grad in gradients(loss, x, readout))


@pytest.mark.parametrize("frozen", [0, 1])
def test_what_needs_no_gradient_gets_none(frozen: int) -> None:
    inputs = example(6, 9)
    inputs[frozen].requires_grad_(False)
    chunked_loss(*inputs, chunk_bytes=200).backward()
    assert inputs[frozen].grad is None
    other = inputs[1 - frozen]
    torch.testing.assert_close(other.grad, gradients(plain(*inputs), other)[0])


def test_gradients_of_several_batches_add_up() -> None:
    x, readout, targets, weights = example(8, 9)
    for part in (slice(0, 3), slice(3, 8)):
        chunked_loss(x[part], readout, targets[part], weights[part], chunk_bytes=150).backward()
    torch.testing.assert_close((x.grad, readout.grad), gradients(plain(x, readout, targets, weights), x, readout))


def test_the_same_graph_is_walked_once() -> None:
    """The second time the gradients would be scaled twice."""
    loss = chunked_loss(*example(6, 9))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("tied", [False, True])
def test_of_a_model_it_is_the_trainers_loss(tied: bool) -> None:
    torch.manual_seed(0)
    shape = ModelConfig(LoopPlan.parse("2x2"), 8, 2, 16, vocab_size=13, max_len=7, tied_readout=tied)
    model = LoopedTransformer(shape).double()
    tokens = torch.randint(13, (3, 7))
    targets, weights = tokens.roll(1, 1), torch.rand(3, 7, dtype=torch.float64)
    readout = model.token_embedding.weight if tied else model.readout_projection.weight
    x = model.iterate(model.embed(tokens))
    found = chunked_loss(model.final_norm(x).flatten(0, 1), readout, targets.flatten(), weights.flatten())
    states = model.iterate(model.embed(tokens)).flatten(0, 1)
    wanted = weighted_loss(model, states, targets.flatten(), weights.flatten())  # in float32
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0, check_dtype=False)
    parameters = list(model.parameters())
    for ours, theirs in zip(gradients(found, *parameters), gradients(wanted, *parameters), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


def autocast_errors(device: str, rows: int, words: int, width: int, **options: Any) -> tuple[list[float], list[float]]:
    """How far the loss and the two gradients are from float64, in relative size: ours, and those of plain autocast."""
    exact = example(rows, words, width)
    wanted = [loss := plain(*exact), *gradients(loss, *exact[:2])]
    inputs = [tensor.detach().to(device) for tensor in exact]
    inputs = [(t.float() if t.is_floating_point() else t).requires_grad_(t.is_floating_point()) for t in inputs]
    inputs[3].requires_grad_(False)
    errors = []
    for loss_of in (lambda *inputs: chunked_loss(*inputs, **options), plain):
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of(*inputs)
        assert loss.dtype == torch.float32
        found = [loss, *gradients(loss, *inputs[:2])]
        assert all(grad.dtype == torch.float32 for grad in found)
        pairs = zip(found, wanted, strict=True)
        errors.append([((a.double().cpu() - b).norm() / b.norm()).item() for a, b in pairs])
    return errors[0], errors[1]


@pytest.mark.parametrize("chunk_bytes", [3000, 2**29])
def test_under_autocast_it_is_as_exact_as_the_plain_loss(chunk_bytes: int) -> None:
    ours, theirs = autocast_errors("cpu", 64, 100, 32, chunk_bytes=chunk_bytes)
    assert max(theirs) > 1e-4  # bfloat16 was used
    assert all(mine < 1.2 * its + 1e-6 for mine, its in zip(ours, theirs, strict=True))
    assert all(error < 2e-2 for error in ours)


class Largest(TorchDispatchMode):
    """Notes the most numbers that any tensor made meanwhile has, and the number of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = self.products = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.numbers = max(self.numbers, made.numel())
        self.products += "mm" in str(function)
        return made


@pytest.mark.parametrize("gradient", [False, True])
def test_no_more_logits_exist_than_a_chunk_has(gradient: bool) -> None:
    rows, words, width = 64, 50, 4
    x, readout, targets, weights = example(rows, words, width)
    with torch.set_grad_enabled(gradient), Largest() as seen:
        loss = chunked_loss(x, readout, targets, weights, chunk_bytes=8 * 10 * words)
        if gradient:
            loss.backward()
    assert seen.numbers == 10 * words  # the readout and the hidden states are smaller
    assert seen.products == 7 * (3 if gradient else 1)  # 64 rows, ten at a time; in evaluation the logits alone
    with Largest() as seen:
        plain(x, readout, targets, weights)
    assert seen.numbers == rows * words


@pytest.mark.parametrize("compiled", [pytest.param(flag, marks=on_a_gpu) for flag in (False, True)])
@pytest.mark.parametrize("chunk_bytes", [2 * 1000 * 64, 2**29])
def test_on_a_gpu_it_is_as_exact_as_the_plain_loss(chunk_bytes: int, compiled: bool) -> None:
    ours, theirs = autocast_errors("cuda", 200, 1000, 64, chunk_bytes=chunk_bytes, compiled=compiled)
    assert all(mine < 1.2 * its + 1e-6 for mine, its in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("gradient", [pytest.param(flag, marks=on_a_gpu) for flag in (False, True)])
def test_a_captured_graph_computes_the_same(gradient: bool) -> None:
    x, readout, targets, weights = (tensor.detach().cuda() for tensor in example(96, 200, 64, dtype=torch.float32))
    x.requires_grad_(gradient)
    readout.requires_grad_(gradient)
    options: dict[str, Any] = {"compiled": True, "chunk_bytes": 4 * 200 * 32}

    def run() -> tuple[Tensor, ...]:
        loss = chunked_loss(x, readout, targets, weights, **options)
        return (loss, *(gradients(loss, x, readout) if gradient else ()))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        wanted = run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        found = run()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(found, wanted)
