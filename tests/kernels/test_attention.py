"""Our attention kernels compute what the model's own attention does, forward and backward, to bfloat16's rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from loopt.attention import Context, Heads, Packing, Rope, attend, rotations

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 97, 100, 127, 128, 129, 133, 134, 255, 256)  # of blocks, mostly
PACKINGS: dict[str, Packing] = {  # one for each choice of blocks
    "short": ((5, 13), (2, 32), (3, 1), (2, 31), (7, 16)),
    "mixed": ((4, 13), *((5, length) for length in EDGES), (3, 21)),
    "long": ((30, 256), *((5, length) for length in EDGES), (2, 176), (30, 255)),
    "one length": ((6, 176),),
}


def rope_of(head_dim: int) -> Rope:
    cos, sin = rotations(256, head_dim, 10_000.0)
    return cos.cuda(), sin.cuda()


def heads_of(head_dim: int) -> Heads:
    return Heads(3, 3, head_dim**-0.5)


def draw(packing: Packing, head_dim: int, kind: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    """Returns queries, keys and values of three heads, and a gradient of their attention."""
    generator = torch.Generator("cuda").manual_seed(head_dim)
    tokens = sum(count * length for count, length in packing)
    qkv = torch.randn(tokens, 9, head_dim, device="cuda", generator=generator).to(kind).requires_grad_()
    return qkv, torch.randn(tokens, 3, head_dim, device="cuda", generator=generator).to(kind)


def both_ways(qkv: Tensor, grad: Tensor, packing: Packing, rope: Rope | None) -> tuple[Tensor, Tensor]:
    from loopt.kernels import attention

    junk = [torch.full((size,), float("nan"), device="cuda") for size in (1 << 12, 1 << 16, 1 << 20, 1 << 24)]
    del junk  # so that the kernels are given memory full of NaN
    mixed = attention.attend(qkv, Context(packing, rope, attention.attend), heads_of(qkv.shape[-1]))
    return mixed.detach(), torch.autograd.grad(mixed, qkv, grad)[0]


@pytest.mark.parametrize("rotary", [True, False], ids=["rope", "plain"])
@pytest.mark.parametrize("head_dim", [16, 32, 64])
@pytest.mark.parametrize(
    ("which", "kind"), [*((which, torch.bfloat16) for which in PACKINGS), ("mixed", torch.float32)]
)
def test_agrees_with_the_models_in_float64(which: str, kind: torch.dtype, head_dim: int, rotary: bool) -> None:
    pytest.importorskip("triton")
    packing, rope = PACKINGS[which], rope_of(head_dim) if rotary else None
    qkv, grad = draw(packing, head_dim, kind)
    exact = qkv.detach().double().requires_grad_()
    context = Context(packing, rope and (rope[0].double(), rope[1].double()), attend)
    wanted = attend(exact, context, heads_of(head_dim))
    (wanted_grad,) = torch.autograd.grad(wanted, exact, grad.double())

    mixed, found_grad = both_ways(qkv, grad, packing, rope)
    assert (mixed.shape, mixed.dtype, found_grad.dtype) == (wanted.shape, kind, kind)
    sizes = [count * length for count, length in packing]
    for shape, found, right in zip(packing, mixed.split(sizes), wanted.split(sizes), strict=True):
        assert (found - right).norm() < 1e-2 * right.norm(), shape
    for shape, found, right in zip(packing, found_grad.split(sizes), wanted_grad.split(sizes), strict=True):
        for one, exactly in zip(found.split(3, 1), right.split(3, 1), strict=True):  # of queries, keys, values
            bound = 1e-2 * exactly.norm() if exactly.norm() > 1e-9 else 1e-2  # one token's is 0, but for the value
            assert (one - exactly).norm() < bound, shape


@pytest.mark.parametrize("head_dim", [16, 32, 64])
@pytest.mark.parametrize("which", PACKINGS)
def test_gives_the_same_bits_every_time(which: str, head_dim: int) -> None:
    pytest.importorskip("triton")
    qkv, grad = draw(PACKINGS[which], head_dim)
    once, *others = (both_ways(qkv, grad, PACKINGS[which], rope_of(head_dim)) for _ in range(4))
    for again in others:
        assert torch.equal(once[0], again[0])
        assert torch.equal(once[1], again[1])


def test_no_token_sees_what_comes_after_it_or_another_sequence() -> None:
    pytest.importorskip("triton")
    packing = ((1, 40), (2, 77), (1, 33))
    qkv, grad = draw(packing, 16)
    grad[90:117] = 0  # of the second sequence, tokens 40 to 116, those that change
    changed = qkv.detach().clone()
    changed[90:117] += 1
    mixed, found = both_ways(qkv, grad, packing, None)
    mixed_then, found_then = both_ways(changed.requires_grad_(), grad, packing, None)
    same = torch.ones(len(qkv), dtype=torch.bool, device="cuda")
    same[90:117] = False
    assert torch.equal(mixed[same], mixed_then[same])
    assert torch.equal(found[same], found_then[same])
    assert not (mixed[90:117] == mixed_then[90:117]).all(dim=(1, 2)).any()


def test_lengths_first_seen_in_inference_can_be_trained_on_and_captured() -> None:
    pytest.importorskip("triton")
    from loopt.kernels import attention

    packing, rope = ((3, 19), (2, 143)), rope_of(32)
    context = Context(packing, rope, attention.attend)
    qkv, grad = draw(packing, 32)
    with torch.inference_mode():
        attention.attend(qkv, context, heads_of(32))
    mixed, found = both_ways(qkv, grad, packing, rope)

    static = torch.zeros_like(qkv).requires_grad_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attention.attend(static, context, heads_of(32))
        (captured_grad,) = torch.autograd.grad(captured, static, grad)
    static.data.copy_(qkv.data)
    graph.replay()
    assert torch.equal(captured, mixed)
    assert torch.equal(captured_grad, found)
