"""The exit gate learns whether the answer stays, beside a model that trains as if it had none; other options train."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.errors import ConfigError
from loopt.runs import Run
from loopt.runs.loop_counts import LoopCounts
from loopt.training import Session, train
from loopt.training.exit_gate import gate_loss
from tiny_runs import TINY, tiny
from tiny_text_runs import TEXT, tiny_text

CPU = Session(device="cpu", progress=False)
GATED = ModelConfig(LoopPlan.parse("1x4"), d_model=16, n_heads=2, d_ff=32, vocab_size=7, max_len=10, exit_gate=True)
OPTIONS: dict[str, dict[str, Any]] = {
    "grouped and normed heads": {"n_kv_heads": 1, "qk_norm": True},
    "own norm, matrix, embedding": {"loop_norm": "own", "injection": "matrix", "loop_embedding": True},
    "final norm, added, scaled": {"loop_norm": "final", "injection": "added", "residual_scaling": True},
    "gate": {"exit_gate": True},
}


def gated(plan: str = "1x4") -> LoopedTransformer:
    torch.manual_seed(0)
    return LoopedTransformer(replace(GATED, plan=LoopPlan.parse(plan)))


def loss_of(model: LoopedTransformer, ids: torch.Tensor, weights: torch.Tensor, every: int = 1) -> torch.Tensor:
    context, record = model.context(((ids.shape[0], ids.shape[1]),)), list[torch.Tensor]()
    model.iterate(model.embed(ids), None, context, record)
    return gate_loss(model, record, None, context, weights, every)


@pytest.mark.parametrize("plan", ["1x4", "2x3", "1x(1,3,1)"])
@pytest.mark.parametrize("every", [1, 3])
def test_its_label_is_whether_the_first_choice_is_that_of_the_last_loop(plan: str, every: int) -> None:
    model = gated(plan)
    ids = torch.randint(7, (5, 10), generator=torch.Generator().manual_seed(1))
    weights = torch.rand(5, 10, generator=torch.Generator().manual_seed(2))
    *earlier, last = [model.readout(thought.state).argmax(-1) for thought in model.thoughts(ids)]
    before, looped, _ = model.config.plan.around_loop()
    states = list(model.walk(model.embed(ids)))[len(before) : len(before) + len(looped) - 1]
    by_hand = []
    for choice, state in zip(earlier, states, strict=True):
        probability = model.exit_logit(state).sigmoid()
        right = torch.where(choice == last, probability, 1 - probability)
        by_hand.append((-right.log() * weights)[:, ::every].sum() / weights[:, ::every].sum())
    assert any(bool((choice != last).any()) for choice in earlier)
    torch.testing.assert_close(loss_of(model, ids, weights, every), torch.stack(by_hand).mean())


def test_its_gradient_reaches_the_gate_alone() -> None:
    model = gated()
    loss_of(model, torch.randint(7, (3, 10)), torch.ones(3, 10)).backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {
        "exit_gate.weight",
        "exit_gate.bias",
    }


def test_it_learns_to_tell_more_than_how_often_answers_stay() -> None:
    model, ids, weights = gated(), torch.randint(7, (64, 10)), torch.ones(64, 10)
    optimizer = torch.optim.Adam(model.exit_gate.parameters(), lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        loss = loss_of(model, ids, weights)
        loss.backward()
        optimizer.step()
    *earlier, last = [model.readout(thought.state).argmax(-1) for thought in model.thoughts(ids)]
    share = torch.stack([choice == last for choice in earlier]).float().mean()
    guessing = F.binary_cross_entropy(share, share)  # what knowing nothing but the share gives
    assert loss < 0.8 * guessing


@pytest.mark.parametrize("kind", ["task", "text"])
def test_a_model_trains_as_if_it_had_none(tmp_path: Path, kind: str) -> None:
    """To the bit, where gradients are not clipped together."""
    config = tiny() if kind == "task" else tiny_text()
    config = replace(config, optim=replace(config.optim, clip_norm=math.inf))
    weights, losses = [], []
    for gate in (False, True):
        run = tmp_path / str(gate)
        train(replace(config, model=replace(config.model, exit_gate=gate)), run, CPU)
        weights.append(Run.load(run).load_model("last").state_dict())
        losses.append([entry.get("loss") for entry in Run.load(run).read_metrics()])
    assert losses[0] == losses[1]
    assert set(weights[1]) - set(weights[0]) == {"exit_gate.weight", "exit_gate.bias"}
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert weights[1]["exit_gate.bias"].item() != 0


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("kind", ["task", "text"])
def test_models_with_options_train_in_every_parameter_and_resume(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    config = tiny("muon") if kind == "task" else tiny_text("muon")
    config = replace(config, model=replace(config.model, **options))
    train(config, tmp_path / "whole", CPU)
    train(config, tmp_path / "broken", replace(CPU, time_limit=0.0))
    train(config, tmp_path / "broken", CPU)
    whole, broken = (Run.load(tmp_path / name).load_model("last") for name in ("whole", "broken"))
    torch.manual_seed(config.seed)
    start = LoopedTransformer(Run.load(tmp_path / "whole").config.model)
    for (name, before), after, again in zip(
        start.named_parameters(), whole.parameters(), broken.parameters(), strict=True
    ):
        assert not torch.equal(before, after), name
        assert torch.equal(after, again), name


@pytest.mark.parametrize("options", [{"loop_norm": "own"}, {"injection": "matrix"}, {"exit_gate": True}])
def test_steps_of_one_loop_are_refused_where_they_teach_an_option_nothing(options: dict[str, Any]) -> None:
    counts = LoopCounts(low=1, high=4)
    for config in (TINY, TEXT):
        with pytest.raises(ConfigError, match=r"^loop_counts.low=1: allowed is 2 or more with loop_norm=own"):
            replace(config, model=replace(config.model, **options), loop_counts=counts)
        replace(config, model=replace(config.model, **options), loop_counts=replace(counts, low=2))
