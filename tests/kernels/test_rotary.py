"""Our kernel for rotary positions computes what the model does, forward and backward, within bfloat16's rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.attention import Context, Heads, Rope, attend, rotations, split_and_rotate
from loopt.kernels import compile_model
from loopt.model_config import Positions

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

LAYOUTS = {
    "by tokens": lambda grad: grad,
    "by heads": lambda grad: grad.transpose(1, 2).contiguous().transpose(1, 2),
    "by coordinates": lambda grad: grad.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
}


def kernels() -> Any:
    return pytest.importorskip("loopt.kernels.rotary")


def relative(found: Tensor, wanted: Tensor) -> float:
    return ((found.double() - wanted).norm() / wanted.norm()).item()


def rope_of(head_dim: int, max_len: int = 300) -> Rope:
    cos, sin = rotations(max_len, head_dim, 10_000.0)
    return cos.cuda(), sin.cuda()


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device="cuda", generator=torch.Generator("cuda").manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("head_dim", [16, 32, 64, 128, 256])
@pytest.mark.parametrize(("batch", "tokens", "heads"), [(1, 1, 1), (3, 7, 2), (2, 257, 5), (2, 256, 32)])
def test_agrees_with_the_models_in_float64(
    batch: int, tokens: int, heads: int, head_dim: int, dtype: torch.dtype, layout: str
) -> None:
    cos, sin = rope_of(head_dim)
    qkv = normal(batch, tokens, 3, heads, head_dim, dtype=dtype).requires_grad_()
    exact = qkv.detach().double().requires_grad_()
    grads = normal(3, batch, tokens, heads, head_dim, dtype=dtype).unbind()

    found = kernels().split_and_rotate(qkv, cos, sin)
    wanted = split_and_rotate(exact.flatten(2, 3), Heads(heads, heads, 1.0), (cos.double(), sin.double()))
    torch.autograd.backward(found, [LAYOUTS[layout](grad) for grad in grads])
    torch.autograd.backward(wanted, [grad.double() for grad in grads])
    assert qkv.grad is not None
    assert exact.grad is not None
    rounding = 5e-3 if dtype == torch.bfloat16 else 1e-6
    for ours, right in zip((*found, *qkv.grad.unbind(2)), (*wanted, *exact.grad.unbind(2)), strict=True):
        assert (ours.shape, ours.dtype) == (right.shape, dtype)
        assert relative(ours, right) < rounding
    assert all(one.is_contiguous() for one in found)


def test_gradients_of_different_layouts() -> None:
    cos, sin = rope_of(64)
    grads = list(normal(3, 2, 33, 4, 64).unbind())
    wanted = kernels().merge_rotated_gradients(*grads, cos, sin)
    grads[1] = LAYOUTS["by heads"](grads[1])
    assert torch.equal(kernels().merge_rotated_gradients(*grads, cos, sin), wanted)


@pytest.mark.parametrize("compiled", [False, True])
def test_attention_agrees_with_the_models_in_float64(compiled: bool) -> None:
    packing = ((5, 133), (2, 20), (1, 300))  # end to end
    rows = sum(count * length for count, length in packing)
    cos, sin = rope_of(64)
    qkv, grad = normal(rows, 9, 64).requires_grad_(), normal(rows, 3, 64)
    heads = Heads(3, 3, 0.125)
    exact = qkv.detach().double().requires_grad_()
    ours = torch.compile(kernels().attend) if compiled else kernels().attend
    mixed = ours(qkv, Context(packing, (cos, sin), kernels().attend), heads)
    wanted = attend(exact, Context(packing, (cos.double(), sin.double()), attend), heads)
    assert relative(mixed, wanted) < 1e-2
    mixed.backward(grad)
    wanted.backward(grad.double())
    assert qkv.grad is not None
    assert exact.grad is not None
    assert relative(qkv.grad, exact.grad) < 1e-2


def test_a_model_takes_it_where_sequences_are_long() -> None:
    kernel = kernels().attend
    cases: list[tuple[int, Positions, bool]] = [(1280, "rope", True), (256, "rope", False), (1280, "learned", False)]
    for max_len, positions, taken in cases:
        config = ModelConfig(LoopPlan.parse("2x1"), 64, 1, 8, vocab_size=5, max_len=max_len, positions=positions)
        model = LoopedTransformer(config).cuda()
        compile_model(model)
        assert (model.attend is kernel) == taken


def test_in_a_graph_and_without_keeping_what_the_projection_wrote() -> None:
    cos, sin = rope_of(64)
    qkv = normal(2, 300, 3, 8, 64)
    wanted = kernels().split_and_rotate(qkv, cos, sin)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = kernels().split_and_rotate(qkv, cos, sin)
    graph.replay()
    for ours, right in zip(found, wanted, strict=True):
        assert torch.equal(ours, right)
        assert ours.untyped_storage().nbytes() == ours.nbytes
