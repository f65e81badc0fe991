"""A task after `#` is the task, with a token in front that has no label."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from loopt.errors import InputError
from loopt.random_bits import Stream
from loopt.tasks import IGNORE, IGSM, Addition, AfterStart, GroupComposition, PHop, Task, check_examples
from loopt.tasks.after_start import without_start

TASKS = [
    GroupComposition(group="S3", n=5),
    PHop(p=(1, 2), n=9, train_examples=100, target_accuracy=0.9),
    Addition(operands=(2, 3), digits=2, answer_weight=0.5),
    IGSM(levels=(2, 3)),
    AfterStart(task=GroupComposition(group="Z3", n=4, supervision="every")),
]


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_examples_and_labels_are_the_tasks_own(task: Task) -> None:
    after = AfterStart.of(task)
    for mine, theirs in zip(after.mixture, task.mixture, strict=True):
        indices, stream = torch.arange(20), Stream("any", 3, "train")
        ours, own = mine.draw(indices, stream), theirs.draw(indices, stream)
        assert ours.tokens.shape == (20, mine.length)
        assert ours.tokens[:, 0].tolist() == [after.start] * 20
        assert torch.equal(ours.tokens[:, 1:], own.tokens)
        for name in ("targets", "answers"):
            labels = getattr(ours, name)
            assert labels[:, 0].tolist() == [IGNORE] * 20
            assert torch.equal(labels[:, 1:], getattr(own, name))
        for ids in ours.tokens.tolist():
            assert after.solve(ids) == [IGNORE, *task.solve(ids[1:])]
            assert after.render(ids).endswith(task.render(ids[1:]))


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_what_the_task_is_measured_by_is_after_start_too(task: Task) -> None:
    after = AfterStart.of(task)
    assert without_start(after) == (after.task, task.vocab_size)
    assert without_start(GroupComposition()) == (GroupComposition(), None)
    for ours, theirs in ((after.tests, task.tests), (after.difficulties, task.difficulties)):
        assert {name: without_start(one)[0] for name, one in ours.items()} == {
            name: replace(one, train_examples=None, answer_weight=0.0, target_accuracy=None)
            for name, one in theirs.items()
        }
    assert (after.train_examples, after.answer_weight) == (task.train_examples, task.answer_weight)
    assert after.target_accuracy == task.target_accuracy
    assert after.max_len == task.max_len + 1
    assert after.vocabulary[:-1] == task.vocabulary
    assert len(set(after.vocabulary)) == after.vocab_size
    check_examples(after)


def test_what_is_typed_may_have_the_token_or_not() -> None:
    after = AfterStart(task=PHop(p=(1,), n=4, alphabet=2))
    assert after.encode("abab") == after.encode(" # abab") == [3, 0, 1, 0, 1]
    twice = AfterStart(task=after)
    assert twice.vocabulary[-2:] == ("#", "##")
    assert twice.encode("abab") == twice.encode("## # abab") == [4, 3, 0, 1, 0, 1]


def test_what_is_wrong_is_refused_in_a_line() -> None:
    with pytest.raises(InputError, match=r"task\.train_examples=5: allowed is None; train_examples itself"):
        AfterStart(task=PHop(train_examples=5))
    after = AfterStart(task=PHop(p=(1,), n=4, alphabet=2))
    with pytest.raises(InputError, match="task after_start: tokens start with 0; allowed is 3, the token #"):
        after.solve([0, 1, 0, 1])
    with pytest.raises(InputError, match="tokens start with -1"):
        after.solve([])
    with pytest.raises(InputError, match="task phop: letter=2; allowed are integers, 0 to 1"):
        after.solve([3, 2])
