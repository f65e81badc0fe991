from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from loopt.commands import tasks as command
from loopt.errors import InputError
from loopt.random_bits import Stream
from loopt.tasks import IGNORE, Batch, Task
from loopt.tasks.addition import Addition
from loopt.tasks.audit import audit


@dataclass(frozen=True)
class Letters(Task):
    """Random letters, with a label that a subclass makes of them."""

    name: ClassVar[str] = "letters"
    n: int = 9
    kinds: int = 4

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return tuple("abcdefgh"[: self.kinds])

    @property
    def length(self) -> int:
        return self.n

    def _label(self, letters: Tensor, indices: Tensor, stream: Stream) -> Tensor:
        return stream.integers(indices, 1, self.kinds, "label")[:, 0]

    def draw(self, indices: Tensor, stream: Stream) -> Batch:
        letters = stream.integers(indices, self.n, self.kinds, "letters")
        answers = torch.full_like(letters, IGNORE)
        answers[:, -1] = self._label(letters, indices, stream)
        return Batch(letters, answers, answers)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        raise NotImplementedError

    def render(self, tokens: Sequence[int]) -> str:
        raise NotImplementedError


class CopyLast(Letters):
    def _label(self, letters: Tensor, indices: Tensor, stream: Stream) -> Tensor:
        return letters[:, -1]


class MostFrequent(Letters):
    def _label(self, letters: Tensor, indices: Tensor, stream: Stream) -> Tensor:
        # Of letters that are as frequent, the last of the alphabet.
        return torch.stack([(letters == k).sum(1) * self.kinds + k for k in range(self.kinds)]).argmax(0)


class ThirdFromTheEnd(Letters):
    def _label(self, letters: Tensor, indices: Tensor, stream: Stream) -> Tensor:
        return letters[:, -3]


class AllB(Letters):
    def _label(self, letters: Tensor, indices: Tensor, stream: Stream) -> Tensor:
        return torch.ones_like(indices)


class CommonBigram(Letters):
    """The label says if a letter is followed by the next of the alphabet more often than by the one before."""

    def _label(self, letters: Tensor, indices: Tensor, stream: Stream) -> Tensor:
        rises = (letters[:, 1:] == letters[:, :-1] + 1).sum(1)
        falls = (letters[:, 1:] == letters[:, :-1] - 1).sum(1)
        return (rises > falls).long()


class WrittenOut(Letters):
    """The last three letters are the answer, each written in the tokens right after the position of its label."""

    def draw(self, indices: Tensor, stream: Stream) -> Batch:
        letters = stream.integers(indices, self.n, self.kinds, "letters")
        answers = torch.full_like(letters, IGNORE)
        answers[:, -4:-1] = letters[:, -3:]
        return Batch(letters, answers, answers)


@dataclass(frozen=True)
class TwoLengths(CopyLast):
    @property
    def mixture(self) -> tuple[Task, ...]:
        return (CopyLast(3, self.kinds), CopyLast(self.n, self.kinds))

    @property
    def tests(self) -> dict[str, Task]:
        return {"short": CopyLast(3, self.kinds), "longer": CopyLast(self.n + 4, self.kinds)}


def shortcuts(task: Task, examples: int = 4000) -> dict[str, float]:
    (found,) = audit(task, examples)
    assert found.test_examples == found.train_examples == examples
    return found.shortcuts


def test_copying_the_last_token_is_found() -> None:
    found = shortcuts(CopyLast())
    assert found["last token"] == found["tokens by place"] == 1
    assert found["constant"] < 0.3
    assert found["bag of tokens"] < 0.6


def test_the_most_frequent_token_is_found() -> None:
    found = shortcuts(MostFrequent())
    assert found["bag of tokens"] > 0.97
    assert found["last token"] < 0.5


def test_one_place_is_found() -> None:
    found = shortcuts(ThirdFromTheEnd())
    assert found["tokens by place"] == 1
    assert found["last token"] < 0.3


def test_bigrams_are_found() -> None:
    found = shortcuts(CommonBigram(n=12))
    assert found["bag of bigrams"] > 0.97
    assert found["bag of tokens"] < 0.75


def test_one_answer_for_everything_is_found() -> None:
    (found,) = audit(AllB(), 1000)
    assert set(found.shortcuts.values()) == {1.0}
    assert found.first_labels == (("b", 1.0),)
    assert found.chance == 1


def test_random_answers_leave_chance() -> None:
    (found,) = audit(Letters(), 4000)
    assert found.distinct_answers == 4
    assert found.chance == 0.25
    for accuracy in found.shortcuts.values():
        assert abs(accuracy - 0.25) < 5 * (0.25 * 0.75 / 4000) ** 0.5
    assert sorted(label for label, _ in found.first_labels) == ["a", "b", "c", "d"]
    shares = [share for _, share in found.first_labels]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)
    assert shares[0] < 0.3


def test_an_answer_written_out_is_not_seen() -> None:
    (found,) = audit(WrittenOut(n=8, kinds=2), 4000)
    assert found.answer_tokens == 3
    assert found.distinct_answers == 8
    for accuracy in found.shortcuts.values():
        assert abs(accuracy - 1 / 8) < 5 * (7 / 64 / 4000) ** 0.5


def test_duplicates_are_counted() -> None:
    task = Letters(n=3, kinds=3)
    (found,) = audit(task, 20)
    train = [tuple(row) for row in task.sample(range(20), 0, "train").tokens.tolist()]
    test = [tuple(row) for row in task.sample(range(20), 0, "test").tokens.tolist()]
    assert found.repeated == 20 - len(set(train)) > 0
    assert found.leaked == sum(row in train for row in test) > 0


def test_nothing_comes_twice_in_a_large_space() -> None:
    (found,) = audit(Letters(n=60), 2000)
    assert found.repeated == found.leaked == 0


def test_a_mixture_is_fitted_together_and_tests_measured_apart() -> None:
    found = audit(TwoLengths(), 2001)
    assert [one.test for one in found] == ["short", "longer"]
    assert [one.shortcuts["last token"] for one in found] == [1, 1]
    assert found[0].train_examples == found[0].test_examples == 2001
    assert found[0].leaked > 1900
    assert found[1].leaked == 0
    assert found[0].repeated == found[1].repeated > 900


def test_addition_has_no_shortcut() -> None:
    """The question ends with "=" everywhere, so the last token that differs is the last digit of all operands."""
    found = audit(Addition(operands=(1, 2), digits=1, test_operands=(1, 4)), 1000)
    assert found[0].shortcuts["last token"] > found[0].shortcuts["constant"]
    assert found[0].answer_tokens == 2
    assert found[1].shortcuts["tokens by place"] < 0.3


def test_same_numbers_again() -> None:
    assert audit(MostFrequent(), 500) == audit(MostFrequent(), 500)
    assert audit(MostFrequent(), 500, seed=1) != audit(MostFrequent(), 500)


def test_bad_number_of_examples() -> None:
    with pytest.raises(InputError, match="task letters: examples=0; allowed are integers, 1 to 1000000000"):
        audit(Letters(), 0)


def test_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["audit", "phop", "--p", "2", "--n", "8", "--sampler", "uniform", "--examples", "300"]
    assert command.main(arguments) == 0
    assert "phop: 300 train examples" in capsys.readouterr().out
    assert command.main([*arguments, "--markdown"]) == 0
    header, rule, *rows = (line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines())
    assert [cell.strip() for cell in header] == ["", "phop"]
    assert [cell.strip() for cell in rule] == ["---", "---:"]
    cells = {name.strip(): value.strip() for name, value in rows}
    assert list(cells) == [
        "answers",
        "different answers",
        "train examples seen before",
        "test examples also in train",
        "chance",
        "constant",
        "last token",
        "bag of tokens",
        "bag of bigrams",
        "tokens by place",
    ]
    assert cells["chance"] == "20.00%"
