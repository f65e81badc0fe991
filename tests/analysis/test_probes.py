"""Probes read what is there, not what is not, and are measured on other examples than they were fitted on."""

from __future__ import annotations

import pytest
import torch

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.analysis import probes
from loopt.analysis.latents import look_inside
from loopt.analysis.probes import fit_probes
from loopt.shipped import load_shipped
from loopt.tasks import IGNORE, PHop
from loopt.tasks.inside import quantities

TASK = PHop(p=(2,), n=12, alphabet=4)


def untrained() -> LoopedTransformer:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_heads": 2, "d_ff": 24, "vocab_size": 5, "max_len": 12}
    return LoopedTransformer(ModelConfig(LoopPlan.parse("1x2"), **sizes)).eval()  # type: ignore[arg-type]


def test_the_token_itself_is_read_from_the_input_and_what_takes_hops_is_not() -> None:
    scores = {(one.quantity, one.step): one for one in fit_probes(untrained(), TASK, examples=64).scores}
    assert scores["hop 0", 0].accuracy == 1.0
    assert scores["hop 1", 0].accuracy < 0.6
    assert {step for _, step in scores} == {0, 1, 2}
    for score in scores.values():
        assert score.rows == 64 * 12
        assert 0 <= score.control <= 1


def test_labels_that_do_not_follow_from_the_state_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def labels_of_their_own(task: PHop, tokens: list[int]) -> dict[str, list[int]]:
        generator = torch.Generator().manual_seed(int("".join(map(str, tokens))))
        return {"noise": torch.randint(4, (len(tokens),), generator=generator).tolist()}

    monkeypatch.setattr(probes, "quantities", labels_of_their_own)
    found = [score.accuracy for score in fit_probes(untrained(), TASK, examples=8).scores]
    assert sum(found) / len(found) < 0.4  # on the examples that it was fitted on, a probe reads over half of them


def test_the_control_task_gives_equal_tokens_equal_labels_and_uses_all() -> None:
    windows = torch.arange(4000) % 1000
    labels = probes._control(windows, 5)
    assert torch.equal(labels[:1000], labels[1000:2000])
    assert labels.bincount(minlength=5).min() > 600


def test_positions_without_a_label_are_left_out() -> None:
    task = PHop(p=(1, 2), n=12)
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_heads": 2, "d_ff": 24, "vocab_size": task.vocab_size, "max_len": task.max_len}
    model = LoopedTransformer(ModelConfig(LoopPlan.parse("1x2"), **sizes)).eval()  # type: ignore[arg-type]
    found = fit_probes(model, task, loops=1, examples=32)
    counts = {one.quantity: one.rows for one in found.scores}
    rows = [quantities(task, row) for row in task.sample(range(32), 0, "test").tokens.tolist()]
    for name, count in counts.items():
        assert count == sum(label != IGNORE for row in rows for label in row.get(name, []))


@pytest.mark.slow
def test_in_the_model_that_comes_with_loopt_hops_can_be_read_one_loop_after_the_other() -> None:
    shipped = load_shipped("1x4")
    found = fit_probes(shipped.model, shipped.task, examples=128)
    accuracy = {(one.quantity, one.step): one.accuracy for one in found.scores}
    first = {hop: min(s for s in range(5) if accuracy[f"hop {hop}", s] > 0.9) for hop in range(5)}
    assert first[0] == 0
    assert first[1] <= first[2] <= first[4] <= 4
    assert first[1] < first[4]  # not all at once
    tokens = shipped.task.sample(range(1), 1, "test").tokens[0].tolist()
    states = [shipped.model.final_norm(x.float()).double() for x in look_inside(shipped.model, tokens).states]
    read, true = found.read(states), quantities(shipped.task, tokens)
    hits = [a == b for a, b in zip(read["hop 4"][4], true["hop 4"], strict=True)]
    assert sum(hits) >= 28
