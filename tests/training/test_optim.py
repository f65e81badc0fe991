from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from loopt.errors import InputError
from loopt.runs import AdafactorConfig, AdamWConfig, OptimizerConfig
from loopt.runs.optimizers import OPTIMIZERS
from loopt.training.adafactor import Adafactor
from loopt.training.muon import Muon
from loopt.training.optim import (
    build_optimizers,
    learning_rate,
    load_optimizer_tensors,
    optimizer_tensors,
    set_lr,
)

NAMES = ["adafactor", "adamw", "muon"]


def config(name: Any) -> OptimizerConfig:
    return OPTIMIZERS[name](lr=0.01, weight_decay=0.1)


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.loop = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 4))
        self.readout = nn.Linear(4, 7, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.readout(self.loop(self.embedding(tokens)))


def tiny() -> Tiny:
    torch.manual_seed(0)
    return Tiny()


def train(model: nn.Module, optimizers: list[torch.optim.Optimizer], first: int, last: int) -> None:
    for step in range(first, last):
        set_lr(optimizers, learning_rate(step, total_steps=10, peak=0.01, warmup_steps=3))
        tokens = torch.randint(7, (5,), generator=torch.Generator().manual_seed(step))
        model.zero_grad()
        nn.functional.cross_entropy(model(tokens), tokens).backward()
        for optimizer in optimizers:
            optimizer.step()


SCHEDULES = st.integers(1, 500).flatmap(
    lambda total: st.tuples(st.just(total), st.integers(0, total), st.floats(1e-6, 10))
)


@settings(deadline=None)
@given(SCHEDULES)
def test_schedule_rises_to_the_peak_and_falls_to_zero(schedule: tuple[int, int, float]) -> None:
    total, warmup, peak = schedule
    rates = [learning_rate(step, total, peak, warmup) for step in range(total + 1)]
    assert all(0 < rate <= peak for rate in rates[:total])
    assert rates[total] == 0.0
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    if warmup > 0:
        assert rates[0] == pytest.approx(peak / warmup)
        assert rates[warmup - 1] == peak
    if warmup < total:
        assert rates[warmup] == peak


@settings(deadline=None)
@given(SCHEDULES)
def test_schedule_is_half_the_peak_halfway_down(schedule: tuple[int, int, float]) -> None:
    total, warmup, peak = schedule
    middle, odd = divmod(total + warmup, 2)
    if warmup < total and not odd:
        assert learning_rate(middle, total, peak, warmup) == pytest.approx(peak / 2)


def names_in(model: nn.Module, group: dict[str, Any]) -> set[str]:
    return {name for name, param in model.named_parameters() if any(param is p for p in group["params"])}


@pytest.mark.parametrize("name", NAMES)
def test_every_trainable_parameter_has_one_optimizer(name: str) -> None:
    model = tiny()
    model.readout.weight.requires_grad_(False)
    optimizers = build_optimizers(config(name), model)
    params = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    assert len(params) == len(set(params))
    assert set(params) == {p for p in model.parameters() if p.requires_grad}


@pytest.mark.parametrize(("name", "kind"), [("adafactor", Adafactor), ("adamw", torch.optim.AdamW)])
def test_only_matrices_decay(name: str, kind: type[torch.optim.Optimizer]) -> None:
    model = tiny()
    (optimizer,) = build_optimizers(config(name), model)
    assert type(optimizer) is kind
    matrices, vectors = optimizer.param_groups
    assert names_in(model, matrices) == {"embedding.weight", "loop.0.weight", "loop.2.weight", "readout.weight"}
    assert matrices["weight_decay"] == 0.1
    assert vectors["weight_decay"] == 0.0


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("shapes", [[(8, 8)], [(24, 6)], [(6, 24)], [(6, 24), (24, 6), (8, 8), (6, 24), (8, 8)]])
def test_muon_is_torchs_with_the_rate_as_a_tensor(shapes: list[tuple[int, int]], weight_decay: float) -> None:
    """Also where several matrices have one shape, but for being turned: these are computed together."""
    torch.manual_seed(0)
    start, gradients = [torch.randn(one) for one in shapes], [[torch.randn(one) for one in shapes] for _ in range(20)]

    def trained(build: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> list[Tensor]:
        parameters = [nn.Parameter(one.clone()) for one in start]
        optimizer = build(parameters)
        for step, of_step in enumerate(gradients):
            set_lr([optimizer], 0.01 * (step + 1))
            for number, (parameter, gradient) in enumerate(zip(parameters, of_step, strict=True)):
                parameter.grad = None if number == 1 and step < 5 else gradient.clone()  # one that begins later
            optimizer.step()
        return [parameter.detach() for parameter in parameters]

    theirs = trained(lambda ps: torch.optim.Muon(ps, lr=0.0, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"))
    ours = trained(lambda ps: Muon(ps, torch.tensor(0.0), weight_decay))
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_muon_takes_the_matrices_of_the_layers() -> None:
    model = tiny()
    muon, adamw = build_optimizers(config("muon"), model)
    assert type(muon) is Muon
    assert type(adamw) is torch.optim.AdamW
    assert names_in(model, muon.param_groups[0]) == {"loop.0.weight", "loop.2.weight"}
    assert muon.param_groups[0]["adjust_lr_fn"] == "match_rms_adamw"


def test_config_reaches_the_optimizers() -> None:
    (adafactor,) = build_optimizers(AdafactorConfig(lr=0.5, scale_parameter=False), tiny())
    assert not adafactor.param_groups[0]["scale_parameter"]
    (adamw,) = build_optimizers(AdamWConfig(lr=0.5, betas=(0.8, 0.9)), tiny())
    assert adamw.param_groups[0]["betas"] == (0.8, 0.9)
    for optimizer in (adafactor, adamw):
        assert all(float(group["lr"]) == 0.5 for group in optimizer.param_groups)


@pytest.mark.parametrize("name", NAMES)
def test_set_lr_reaches_every_group(name: str) -> None:
    optimizers = build_optimizers(config(name), tiny())
    set_lr(optimizers, 0.25)
    assert {float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups} == {0.25}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("saved_after", [0, 4])
def test_resumed_training_is_bit_identical(name: str, saved_after: int, tmp_path: Path) -> None:
    whole = tiny()
    train(whole, build_optimizers(config(name), whole), 0, 8)

    interrupted = tiny()
    optimizers = build_optimizers(config(name), interrupted)
    train(interrupted, optimizers, 0, saved_after)
    save_file(optimizer_tensors(interrupted, optimizers), tmp_path / "optimizer.safetensors")

    resumed = tiny()
    resumed.load_state_dict(interrupted.state_dict())
    optimizers = build_optimizers(config(name), resumed)
    load_optimizer_tensors(resumed, optimizers, load_file(tmp_path / "optimizer.safetensors"))
    train(resumed, optimizers, saved_after, 8)
    for key, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_asking_for_tensors_changes_nothing(name: str) -> None:
    """Also where only some parameters have had a gradient, so that only some have state."""
    asked, unasked = tiny(), tiny()
    for model in (asked, unasked):
        optimizers = build_optimizers(config(name), model)
        model.loop[0].requires_grad_(False)
        train(model, optimizers, 0, 2)
        model.loop[0].requires_grad_(True)
        if model is asked:
            grad = model.readout.weight.grad
            tensors = {key: tensor.clone() for key, tensor in optimizer_tensors(model, optimizers).items()}
            assert model.readout.weight.grad is grad
            assert model.loop[0].weight.grad is None
            assert not any(key.startswith("loop.0.") for key in tensors)
        train(model, optimizers, 2, 4)
    for a, b in zip(asked.parameters(), unasked.parameters(), strict=True):
        assert torch.equal(a, b)


class Counting(torch.optim.Optimizer):
    """Starts its state at 7, and moves every weight by what that has come to."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.01})

    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["count"] = torch.full((), 7.0)
                state["count"] += 1
                with torch.no_grad():
                    parameter -= float(group["lr"]) * state["count"]


@pytest.mark.parametrize("saved_after", [0, 3])
def test_an_optimizer_may_start_its_state_as_it_likes(saved_after: int) -> None:
    whole, interrupted, resumed = tiny(), tiny(), tiny()
    train(whole, [Counting(whole.parameters())], 0, 5)
    before = Counting(interrupted.parameters())
    train(interrupted, [before], 0, saved_after)
    after = Counting(resumed.parameters())
    load_optimizer_tensors(resumed, [after], optimizer_tensors(interrupted, [before]))
    resumed.load_state_dict(interrupted.state_dict())
    train(resumed, [after], saved_after, 5)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_tensor_names() -> None:
    model = tiny()
    optimizers = build_optimizers(config("muon"), model)
    assert not optimizer_tensors(model, optimizers)
    train(model, optimizers, 0, 1)
    names = optimizer_tensors(model, optimizers).keys()
    assert "loop.0.weight/momentum_buffer" in names
    assert {"loop.0.bias/step", "loop.0.bias/exp_avg", "loop.0.bias/exp_avg_sq"} < names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loop.0.bias/exp_avg": None}, r"loop\.0\.bias/exp_avg: found nothing, expected float32 \[6\]"),
        ({"loop.9.bias/step": torch.ones(())}, r"loop\.9\.bias/step: found float32 \[\], expected nothing"),
        (
            {"readout.weight/exp_avg": torch.ones(4, 7)},
            r"readout\.weight/exp_avg: found float32 \[4, 7\], expected float32 \[7, 4\]",
        ),
        (
            {"loop.0.bias/exp_avg": torch.ones(6, dtype=torch.bfloat16)},
            r"loop\.0\.bias/exp_avg: found bfloat16 \[6\], expected float32 \[6\]",
        ),
    ],
)
def test_tensors_that_do_not_fit(change: dict[str, Tensor | None], message: str) -> None:
    model = tiny()
    optimizers = build_optimizers(config("adamw"), model)
    train(model, optimizers, 0, 2)
    tensors = {key: tensor.clone() for key, tensor in optimizer_tensors(model, optimizers).items()}
    changed = {key: tensor for key, tensor in {**tensors, **change}.items() if tensor is not None}
    with pytest.raises(InputError, match=f"^optimizer state {message}$"):
        load_optimizer_tensors(model, optimizers, changed)
    for key, tensor in optimizer_tensors(model, optimizers).items():
        assert torch.equal(tensor, tensors[key]), f"{key} changed although the load was refused"
