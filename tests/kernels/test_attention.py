"""Our attention kernel computes what the model's own attention does, both ways, within bfloat16's rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from loopt import LoopPlan, ModelConfig
from loopt.model import _rotations, attend

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def relative(found: Tensor, wanted: Tensor) -> float:
    return ((found.double() - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("rope", [True, False])
@pytest.mark.parametrize("head_dim", [16, 32, 64])
@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 33, 64, 100, 133, 255, 256])
def test_agrees_with_the_models_in_float64(tokens: int, head_dim: int, rope: bool) -> None:
    kernel = pytest.importorskip("loopt.kernels.attention")
    config = ModelConfig(LoopPlan.parse("1x1"), 3 * head_dim, 3, 8, max_len=256)
    cos, sin = (table.cuda() for table in _rotations(config))
    generator = torch.Generator("cuda").manual_seed(tokens)
    parts = ((5, tokens), (2, 20), (3, tokens))  # end to end
    rows = sum(count * length for count, length in parts)
    qkv = torch.randn(rows, 3, 3, head_dim, device="cuda", generator=generator).bfloat16().requires_grad_()
    grad = torch.randn(rows, 3, head_dim, device="cuda", generator=generator).bfloat16()
    exact = qkv.detach().double().requires_grad_()

    mixed = kernel.attend(qkv, parts, (cos, sin) if rope else None, config.scale)
    wanted = attend(exact, parts, (cos.double(), sin.double()) if rope else None, config.scale)
    assert (mixed.shape, mixed.dtype) == (wanted.shape, torch.bfloat16)
    assert relative(mixed, wanted) < 1e-2
    mixed.backward(grad)
    wanted.backward(grad.double())
    assert qkv.grad is not None
    assert exact.grad is not None
    for start, end in ((0, 5 * tokens), (5 * tokens, 5 * tokens + 40), (5 * tokens + 40, rows)):
        for which in range(3):  # queries, keys, values; with one token the first two have no gradient
            found, right = qkv.grad[start:end, which], exact.grad[start:end, which]
            if right.norm() > 1e-9:
                assert relative(found, right) < 1e-2
            else:
                assert found.abs().max() < 1e-2


def test_no_token_sees_what_comes_after_it() -> None:
    kernel = pytest.importorskip("loopt.kernels.attention")
    qkv = torch.randn(2, 77, 3, 2, 16, device="cuda").bfloat16()
    changed = qkv.clone()
    changed[:, 50:] += 1
    attended = [kernel.attend(one.flatten(0, 1), ((2, 77),), None, 0.25) for one in (qkv, changed)]
    before, after = (mixed.unflatten(0, (2, 77)) for mixed in attended)
    assert torch.equal(before[:, :50], after[:, :50])
    assert not torch.equal(before[:, 50:], after[:, 50:])
