from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from loopt.errors import InputError
from loopt.training.adafactor import Adafactor
from ranks import in_ranks

SHAPES = [(), (5,), (4, 6), (7, 1), (3, 4, 5)]
STEPS = 60
TIGHT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-13}
ON_A_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def parameters(dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in SHAPES]


def train(params: list[nn.Parameter], optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    """Steps with gradients that depend on the step alone, of very different sizes over the steps and columns."""
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        for param in params:
            grad = torch.randn(param.shape, generator=generator, dtype=torch.float64) * 10.0 ** (step % 5 - 2)
            param.grad = (grad * torch.logspace(-3, 1, param.shape[-1]) if param.ndim else grad).to(param.dtype)
        optimizer.step()


def assert_same(ours: list[nn.Parameter], theirs: list[nn.Parameter], **tolerance: Any) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("clip_threshold", [1.0, 2.0])
def test_agrees_with_torch(weight_decay: float, clip_threshold: float) -> None:
    lr = 0.1  # at most 1 / sqrt(STEPS): torch caps the rate there
    ours, theirs = parameters(), parameters()
    train(ours, Adafactor(ours, lr, clip_threshold=clip_threshold, weight_decay=weight_decay), 0, STEPS)
    peer = torch.optim.Adafactor(theirs, lr, eps=(1e-30, 1e-3), d=clip_threshold, weight_decay=weight_decay)
    train(theirs, peer, 0, STEPS)
    assert_same(ours, theirs, **TIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("scale_parameter", [True, False])
@pytest.mark.parametrize("eps", [(1e-30, 1e-3), (1e-3, 2.0)])
def test_agrees_with_transformers(scale_parameter: bool, eps: tuple[float, float]) -> None:
    peer_class = pytest.importorskip("transformers.optimization").Adafactor
    ours, theirs = parameters(), parameters()
    train(ours, Adafactor(ours, 0.3, eps=eps, scale_parameter=scale_parameter), 0, STEPS)
    peer = peer_class(theirs, 0.3, eps=eps, scale_parameter=scale_parameter, relative_step=False, warmup_init=False)
    train(theirs, peer, 0, STEPS)
    assert_same(ours, theirs, **TIGHT)


def test_rate_is_not_capped_by_the_step() -> None:
    param = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = Adafactor([param], lr=0.9, scale_parameter=False)
    for _ in range(10):
        param.grad = torch.ones_like(param)
        optimizer.step()
    torch.testing.assert_close(param, torch.full_like(param, 1 - 10 * 0.9))


@settings(max_examples=30, deadline=None)
@given(shape=st.sampled_from(SHAPES), scale=st.floats(1e-12, 1e12), lr=st.floats(1e-4, 1.0))
def test_update_is_at_most_lr_times_the_parameter_scale(shape: tuple[int, ...], scale: float, lr: float) -> None:
    param = nn.Parameter(torch.randn(shape))
    before = param.detach().clone()
    optimizer = Adafactor([param], lr)
    param.grad = torch.randn(shape) * scale
    optimizer.step()
    rms_of_change = (param - before).square().mean().sqrt()
    assert rms_of_change <= lr * before.square().mean().sqrt().clamp(min=1e-3) * 1.001


def test_rows_without_gradient_stay_put() -> None:
    """Tokens that are not in the batch: their embedding rows have zero gradient, from the first step on."""
    param = nn.Parameter(torch.ones(4, 3))
    optimizer = Adafactor([param])
    for _ in range(3):
        param.grad = torch.tensor([1.0, 0.0, 2.0, 0.0])[:, None] * torch.ones(4, 3)
        optimizer.step()
    assert torch.equal(param[1::2], torch.ones(2, 3))
    assert bool((param[::2] < 1).all())


@pytest.mark.parametrize("scale_parameter", [True, False])
def test_step_never_reads_a_tensor_on_the_host(scale_parameter: bool) -> None:
    with FakeTensorMode():  # has no values: .item() or a branch on a tensor raises
        params = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
        lr = torch.tensor(0.1)
        optimizer = Adafactor(params, lr, weight_decay=0.1, scale_parameter=scale_parameter)
        for _ in range(2):
            for param in params:
                param.grad = torch.randn_like(param)
            optimizer.step()


def test_lr_tensor_changed_in_place_takes_effect() -> None:
    changed, rebuilt = parameters(), parameters()
    lr = torch.tensor(0.1, dtype=torch.float64)
    with_tensor, with_float = Adafactor(changed, lr, weight_decay=0.1), Adafactor(rebuilt, 0.1, weight_decay=0.1)
    train(changed, with_tensor, 0, 3)
    train(rebuilt, with_float, 0, 3)
    lr.fill_(0.01)
    with_float.param_groups[0]["lr"] = 0.01
    train(changed, with_tensor, 3, 6)
    train(rebuilt, with_float, 3, 6)
    assert_same(changed, rebuilt, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_put_in_from_outside_continues_bit_for_bit(dtype: torch.dtype) -> None:
    whole, resumed = parameters(dtype), parameters(dtype)
    first = Adafactor(resumed)
    train(whole, Adafactor(whole), 0, 8)
    train(resumed, first, 0, 4)
    second = Adafactor(resumed)
    for param in resumed:
        second.state[param] = {key: tensor.clone() for key, tensor in first.state[param].items()}
    train(resumed, second, 4, 8)
    assert_same(whole, resumed, rtol=0, atol=0)


def test_bfloat16_is_computed_in_float32() -> None:
    low = parameters(torch.bfloat16)
    high = [nn.Parameter(param.detach().float()) for param in low]
    low_optimizer, high_optimizer = Adafactor(low, 0.1), Adafactor(high, 0.1)
    for a, b in zip(low, high, strict=True):
        a.grad = torch.randn_like(a)
        b.grad = a.grad.float()
    low_optimizer.step()
    high_optimizer.step()
    for a, b in zip(low, high, strict=True):
        assert torch.equal(a, b.bfloat16())
        for key, tensor in low_optimizer.state[a].items():
            assert torch.equal(tensor, high_optimizer.state[b][key])
            assert tensor.dtype == torch.float32


def test_state_is_factored_for_matrices_only() -> None:
    params = parameters()
    optimizer = Adafactor(params)
    train(params, optimizer, 0, 1)
    shapes = [{key: tuple(tensor.shape) for key, tensor in optimizer.state[param].items()} for param in params]
    assert shapes[1] == {"step": (), "variance": (5,)}
    assert shapes[2] == {"step": (), "row_var": (4, 1), "col_var": (1, 6)}
    assert shapes[4] == {"step": (), "row_var": (3, 4, 1), "col_var": (3, 1, 5)}


def test_closure_and_parameters_without_gradient() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = Adafactor([used, unused])

    def closure() -> float:
        loss = used.sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 2.0
    assert bool((used < 1).all())
    assert torch.equal(unused, torch.ones(2))
    assert unused not in optimizer.state


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"lr": -1.0}, "lr=-1.0"),
        ({"lr": torch.ones(1)}, "lr="),
        ({"beta2_decay": 0.8}, "beta2_decay=0.8"),
        ({"eps": (0.0, 1e-3)}, "eps="),
        ({"clip_threshold": 0.0}, "clip_threshold=0.0"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
    ],
)
def test_bad_options(options: dict[str, float | Tensor], field: str) -> None:
    with pytest.raises(InputError, match=f"^Adafactor.{field}.*: allowed is [^\n]*$"):
        Adafactor(parameters(), **options)  # type: ignore[arg-type]


def _sharded_training(rank: int, folder: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    whole = parameters()[1:]  # fully_shard, too, refuses 0-dim parameters
    sharded = [nn.Parameter(distribute_tensor(param.detach(), mesh, [Shard(0)])) for param in whole]
    lr = torch.tensor(0.1)
    whole_optimizer, sharded_optimizer = (Adafactor(ps, lr, weight_decay=0.1) for ps in (whole, sharded))
    for step in range(4):
        torch.manual_seed(step)
        for param, shard in zip(whole, sharded, strict=True):
            param.grad = torch.randn_like(param)
            shard.grad = distribute_tensor(param.grad, mesh, [Shard(0)])
        whole_optimizer.step()
        sharded_optimizer.step()
    for param, shard in zip(whole, sharded, strict=True):
        assert isinstance(shard.data, DTensor)
        torch.testing.assert_close(shard.data.full_tensor(), param.data, **TIGHT)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_agrees_with_itself_on_uneven_shards(tmp_path: Path) -> None:
    in_ranks(_sharded_training, tmp_path)


def test_on_a_cpu_compiled_takes_no_kernel() -> None:
    plain, compiled = parameters(), parameters()
    train(plain, Adafactor(plain), 0, 3)
    train(compiled, Adafactor(compiled, compiled=True), 0, 3)
    assert_same(compiled, plain, rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", [False, True])
def test_captured_in_a_cuda_graph(compiled: bool) -> None:
    eager, captured = ([nn.Parameter(param.detach().cuda()) for param in parameters(torch.float32)] for _ in range(2))
    grads = [torch.randn_like(param) for param in eager]
    for params in (eager, captured):
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.clone()
    lr = torch.tensor(0.1, device="cuda")
    eager_optimizer, captured_optimizer = (Adafactor(params, lr, compiled=compiled) for params in (eager, captured))
    eager_optimizer.step()
    captured_optimizer.step()  # creates the state, outside the graph
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured_optimizer.step()
    for rate in (0.1, 0.05, 0.01):
        lr.fill_(rate)
        eager_optimizer.step()
        graph.replay()
    assert_same(captured, eager, rtol=0, atol=0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_A_GPU)])
@pytest.mark.parametrize("shape", [(37,), (17, 300)])
def test_a_factor_is_as_good_as_gradients_multiplied_by_it(shape: tuple[int, ...], device: str) -> None:
    torch.manual_seed(0)
    start, grad = torch.randn(shape, device=device), torch.randn(shape, device=device)
    factor = torch.tensor(0.3, device=device)
    ends = []
    for in_step in (True, False):
        weights = nn.Parameter(start.clone())
        optimizer = Adafactor([weights], compiled=True)
        for _ in range(3):
            weights.grad = grad.clone() if in_step else grad * factor
            optimizer.step(grad_factor=factor if in_step else None)
            assert torch.equal(weights.grad, grad if in_step else grad * factor)
        ends.append(weights.detach())
    assert torch.equal(*ends)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_A_GPU)])
@pytest.mark.parametrize("shape", [(37,), (17, 300)])
def test_by_zero_all_is_zero(shape: tuple[int, ...], device: str) -> None:
    weights = nn.Parameter(torch.ones(shape, device=device))
    weights.grad = torch.full(shape, float("nan"), device=device)
    Adafactor([weights], compiled=True).step(grad_factor=torch.tensor(0.0, device=device))
    assert torch.equal(weights, torch.ones_like(weights))
