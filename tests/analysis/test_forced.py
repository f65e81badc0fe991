"""Decoding given examples: with all loops and the whole cache it is scoring; points are what was decoded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from loopt import InputError, LoopedTransformer, LoopPlan, ModelConfig
from loopt.analysis.drafts import draft_points
from loopt.analysis.exits import THRESHOLDS, exit_points, rules_for
from loopt.analysis.forced import Given, decode_given
from loopt.generation import CachePolicy, StateChange
from loopt.scoring import exact_match
from loopt.tasks import Addition, PHop
from loopt.text.source import Text
from tiny_text_runs import text_directory

CPU = torch.device("cpu")


def build(vocab_size: int, max_len: int, plan: str = "1x4", gate: bool = False) -> LoopedTransformer:
    torch.manual_seed(0)
    shape = ModelConfig(LoopPlan.parse(plan), 16, 2, 24, vocab_size, max_len, exit_gate=gate)
    model = LoopedTransformer(shape).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("task", [PHop(p=(2,), n=12), Addition(operands=(2,), digits=2, test_operands=(2,))])
@pytest.mark.parametrize("loops", [None, 2])
def test_decoding_a_tasks_answers_is_exact_match(task: PHop | Addition, loops: int | None) -> None:
    (test, *_) = task.tests.values()
    model = build(task.vocab_size, task.max_len)
    given = Given.of(task, task.max_len, 200, "test", CPU)
    found, wanted = decode_given(model, given, loops=loops), exact_match(model, test, "test", 200, loops)
    assert found.accuracy == pytest.approx(wanted.accuracy, abs=1e-6)
    assert found.loss == pytest.approx(wanted.loss, abs=1e-9)
    assert found.mean_loops == (loops or 4)


def test_decoding_text_is_its_second_half_scored() -> None:
    source = Text(str(text_directory())).prepared(Path("unused"))
    model = build(source.vocab_size, 12)
    given = Given.of(source, 12, 7, "test", CPU)
    assert (given.tokens.shape, given.prompt) == ((7, 12), 6)
    text = source.tokens.read("test", range(7), 12)
    with torch.no_grad():
        scores = model(text[:, :-1]).log_softmax(2).gather(2, text[:, 1:, None])[..., 0]
    assert decode_given(model, given).loss == pytest.approx(-scores[:, 6:].mean().item(), abs=1e-9)
    last, window = (
        decode_given(model, given, policy=policy) for policy in (CachePolicy("last"), CachePolicy("first+window", 3))
    )
    assert len({decode_given(model, given).loss, last.loss, window.loss}) == 3


def test_points_of_a_curve_are_what_was_decoded() -> None:
    task = PHop(p=(2,), n=12)
    model = build(task.vocab_size, task.max_len, gate=True)
    given = Given.of(task, 12, 50, "test", CPU)
    points = list(exit_points(model, given, rules_for(model, [])))
    assert [(point.rule, point.setting) for point in points] == [
        *(("fixed", loops) for loops in range(1, 5)),
        *((rule, threshold) for rule, thresholds in THRESHOLDS.items() for threshold in thresholds),
    ]
    by_name = {(point.rule, point.setting): point.decoded for point in points}
    assert by_name["fixed", 2] == decode_given(model, given, loops=2)
    assert by_name["change", 0.4] == decode_given(model, given, exit_rule=StateChange(0.4))
    for rule, thresholds in THRESHOLDS.items():  # from leaving late to leaving early
        loops = [by_name[rule, threshold].mean_loops for threshold in thresholds]
        assert loops == sorted(loops, reverse=True), rule


def test_only_rules_that_the_model_can_follow_are_tried() -> None:
    assert rules_for(build(5, 8), []) == ["change", "kl", "entropy"]
    with pytest.raises(InputError, match="no exit gate"):
        rules_for(build(5, 8), ["gate"])


def test_answers_at_the_first_token_leave_nothing_to_decode_after() -> None:
    class First(PHop):
        def sample(self, *arguments, **options):  # type: ignore[no-untyped-def]
            batch = super().sample(*arguments, **options)
            return replace(batch, answers=batch.answers.flip(1))

    with pytest.raises(InputError, match="answers at its first token"):
        Given.of(First(p=(2,), n=12), 12, 5, "test", CPU)


def test_drafts_change_no_token_in_float64() -> None:
    model = build(11, 40)
    prompts = [[1, 2, 3], [4, 5, 6]]
    points = list(draft_points(model, prompts, 20, draft_loops=[1, 3], draft_tokens=[2, 4], turns=1))
    assert [(point.draft_loops, point.draft_tokens) for point in points] == [(1, 2), (1, 4), (3, 2), (3, 4)]
    assert all(point.differing == 0 and 0 <= point.accepted <= 1 and point.speed > 0 for point in points)
    assert points[2].accepted >= points[0].accepted
