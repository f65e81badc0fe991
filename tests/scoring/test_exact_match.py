"""Exact match is the count one would make by hand, however the examples are batched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.errors import PlanError
from loopt.random_bits import Stream
from loopt.scoring import Score, exact_match, mean_score, score_each
from loopt.tasks import IGNORE, Addition, Batch, PHop, Task


@dataclass(frozen=True)
class Running(Task):
    """Of random bits, the parity so far, asked at the last ``asked`` positions."""

    name: ClassVar[str] = "running"

    asked: int = 2

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return ("0", "1")

    @property
    def length(self) -> int:
        return 6

    def draw(self, indices: Tensor, stream: Stream) -> Batch:
        tokens = stream.integers(indices, 6, 2, "bits")
        labels = tokens.cumsum(1) % 2
        answers = labels.clone()
        answers[:, : 6 - self.asked] = IGNORE
        return Batch(tokens, labels, answers)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        return [sum(tokens[: i + 1]) % 2 for i in range(len(tokens))]

    def render(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))


TASKS = [PHop(p=(2,), n=8, alphabet=3), Running(asked=1), Running(asked=2), Running(asked=3)]
EXAMPLES = 61


def build(task: Task, plan: str = "1x3") -> LoopedTransformer:
    torch.manual_seed(0)
    sizes = ModelConfig(LoopPlan.parse(plan), 8, 2, 16, vocab_size=len(task.vocabulary), max_len=task.length)
    return LoopedTransformer(sizes)


@pytest.mark.parametrize("loops", [None, 1, 4])
@pytest.mark.parametrize("task", TASKS, ids=str)
def test_score_is_the_count_by_hand(task: Task, loops: int | None) -> None:
    model = build(task)
    score = exact_match(model, task, "test", EXAMPLES, loops, batch_size=16)
    right, losses = 0, []
    for index in range(EXAMPLES):
        batch = task.sample(range(index, index + 1), 0, "test")
        logits = model(batch.tokens, loops=loops)[0]
        asked = [(row, int(label)) for row, label in zip(logits, batch.answers[0], strict=True) if label != IGNORE]
        right += all(int(row.argmax()) == label for row, label in asked)
        losses += [-row.log_softmax(-1)[label].item() for row, label in asked]
    assert 0 < right < EXAMPLES
    assert score.accuracy == right / EXAMPLES
    assert score.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert score.examples == EXAMPLES


@pytest.mark.parametrize("batch_size", [1, 7, 60, 61, 100])
def test_batch_size_does_not_matter(batch_size: int) -> None:
    task = Running()
    whole, parts = (
        exact_match(build(task), task, "validation", EXAMPLES, batch_size=size) for size in (EXAMPLES, batch_size)
    )
    assert parts.accuracy == whole.accuracy
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)


def test_splits_are_different_examples() -> None:
    task = Running()
    assert exact_match(build(task), task, "test", 61) != exact_match(build(task), task, "validation", 61)


def test_scoring_leaves_the_model_as_it_was() -> None:
    task = Running()
    model = build(task)
    exact_match(model, task, "test", 8)
    with pytest.raises(PlanError):
        exact_match(model, task, "test", 8, loops=0)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_every_test_of_a_task_has_a_score_of_its_own() -> None:
    task = Addition(operands=(1, 3), digits=1, test_operands=(2, 3, 4))
    sizes = ModelConfig(LoopPlan.parse("1x2"), 8, 2, 16, vocab_size=len(task.vocabulary), max_len=12)
    torch.manual_seed(0)
    model = LoopedTransformer(sizes)
    for loops in (None, 1):
        scores = score_each(model, task.tests, "test", 40, loops)
        assert list(scores) == ["n=2", "n=3", "n=4"]
        for operands in (2, 3, 4):
            alone = exact_match(model, Addition(operands=(operands,), digits=1), "test", 40, loops)
            assert scores[f"n={operands}"] == alone
    assert len({score.loss for score in scores.values()}) == 3
    single = score_each(build(Running()), Running().tests, "validation", 61)
    assert single == {"running": exact_match(build(Running()), Running(), "validation", 61)}


def test_the_mean_counts_all_tests_alike() -> None:
    scores = {"a": Score(0.5, 1.0, 10), "b": Score(1.0, 0.25, 90), "c": Score(0.0, 4.0, 20)}
    assert mean_score(scores) == Score(0.5, 1.75, 120)
    assert mean_score({"a": scores["a"]}) == scores["a"]
