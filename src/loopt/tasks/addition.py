"""n-ary addition: add up many numbers at once, and write down nothing but the sum.

Operands have leading zeros up to a fixed number of digits; their sum has none, starts with its most significant digit
and is followed by an end token. Examples with the same number of operands have the same length: where a sum has fewer
digits than it could have, padding follows the end token. With ``room`` all examples have one length, and all sums start
at the same position.

>>> print(Addition(operands=4).render([3, 1, 5, 10, 1, 2, 0, 10, 0, 4, 5, 10, 8, 2, 4, 11]))
4 operands of 3 digits: answer 1304
<BLANKLINE>
carry  1  1  1
          3  1  5
       +  1  2  0
       +  0  4  5
       +  8  2  4
     ────────────
       1  3  0  4
<BLANKLINE>
315+120+045+824=1304
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from loopt.errors import InputError
from loopt.random_bits import Stream
from loopt.tasks.base import IGNORE, Batch, Supervision, Task, check_choice, check_integer, different_integers

VOCABULARY = (*"0123456789", "+", "=", "end", "pad")
PLUS, EQUALS, END, PAD = range(10, 14)

MAX_DIGITS = 1000

Fill = Literal["padding", "zeros"]


@dataclass(frozen=True)
class Addition(Task):
    name: ClassVar[str] = "addition"

    operands: tuple[int, ...] = (2, 4, 8, 16, 32)
    """How many numbers are added. With several counts, each has the same share of the examples."""
    digits: int = 3
    """Digits of an operand, which is drawn uniformly from 0 to 99…9."""
    test_operands: tuple[int, ...] = (8, 16, 24, 32)
    """The numbers of operands that a trained model is scored on, one by one."""
    supervision: Supervision = "last"
    """last: the labels are those of the sum. every: each digit of an operand also has a label, a digit of what its
    column adds up to so far: the last digit in the second, fourth, … operand, the one before it in the others."""
    room: int = 0
    """For how many operands there is room: padding stands in front of fewer, so that all sums are in the same place;
    0: no padding in front."""
    fill: Fill = "padding"
    """What stands in front where there is room for more: padding, or zeros, so that as many numbers are always added,
    of which the first are 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("operands", "test_operands"):
            counts = different_integers(self.name, name, getattr(self, name), 1)
            if not counts:
                raise InputError(f"task addition: {name}=(); allowed are one or more integers, such as 2 or 2 4 8")
            object.__setattr__(self, name, counts)
        check_integer(self.name, "digits", self.digits, 1, MAX_DIGITS)
        check_choice(self.name, "supervision", self.supervision, get_args(Supervision))
        check_integer(self.name, "room", self.room, 0)
        most = max(self.operands + self.test_operands)
        if 0 < self.room < most:
            raise InputError(f"task addition: room={self.room}; allowed are {most} or more, as many as are added, or 0")
        check_choice(self.name, "fill", self.fill, get_args(Fill))
        if self.fill == "zeros" and not self.room:
            raise InputError(f"task addition: fill='zeros' with room=0; allowed is a room of {most} or more")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return VOCABULARY

    @property
    def length(self) -> int:
        most = self.room or max(self.operands)
        return most * (self.digits + 1) + self._most_digits_of_sum(most) + 1

    def _most_digits_of_sum(self, operands: int) -> int:
        return len(str(operands * (10**self.digits - 1)))

    @property
    def mixture(self) -> tuple[Task, ...]:
        return tuple(replace(self, operands=(count,)) for count in self.operands)

    @property
    def tests(self) -> dict[str, Task]:
        return {f"n={count}": replace(self, operands=(count,)) for count in self.test_operands}

    def draw(self, indices: Tensor, stream: Stream) -> Batch:
        """Draws examples; with k numbers of operands, example i is example i // k of the mixture's task i % k."""
        kinds = len(self.operands)
        if kinds == 1:
            return self._draw_one_kind(self.operands[0], indices, stream)
        which, index = (indices % kinds)[:, None], indices // kinds  # [batch, 1], [batch]
        tokens = indices.new_full((len(indices), self.length), PAD)
        targets = answers = torch.full_like(tokens, IGNORE)
        for kind, operands in enumerate(self.operands):
            batch = self._draw_one_kind(operands, index, stream)
            tokens = torch.where(which == kind, batch.tokens, tokens)
            targets = torch.where(which == kind, batch.targets, targets)
            answers = torch.where(which == kind, batch.answers, answers)
        return Batch(tokens, targets, answers)

    def _draw_one_kind(self, operands: int, indices: Tensor, stream: Stream) -> Batch:
        """Draws examples with this many operands, padded to this task's length."""
        batch, draws = len(indices), operands * self.digits
        # Not one purpose for all: the first operands of longer examples would be those of the shorter ones.
        drawn = stream.integers(indices, draws, 10, f"digits of {operands} operands")
        digits = drawn.view(batch, operands, self.digits)  # [batch, operands, digits]
        if self.fill == "zeros":
            digits = F.pad(digits, (0, 0, self.room - operands, 0))  # [batch, room, digits]
            operands = self.room
        question = F.pad(digits, (0, 1), value=PLUS).flatten(1)  # [batch, operands * (digits + 1)]
        question[:, -1] = EQUALS

        written = self._written_sum(digits)  # [batch, answer + 1]
        tokens = torch.cat([question, written], dim=1)
        labels = torch.where(written == PAD, IGNORE, written)
        # From "=" on, the label of a position is the next token; the last position has none.
        before_equals = question.shape[1] - 1
        answers = F.pad(labels, (before_equals, 1), value=IGNORE)
        targets = answers
        if self.supervision == "every":
            targets = torch.cat([_column_labels(digits)[:, :before_equals], answers[:, before_equals:]], dim=1)
        front = max(0, self.room - operands) * (self.digits + 1)
        around = (front, self.length - front - tokens.shape[1])
        targets, answers = (F.pad(one, around, value=IGNORE) for one in (targets, answers))  # [batch, length] each
        return Batch(F.pad(tokens, around, value=PAD), targets, answers)

    def _written_sum(self, digits: Tensor) -> Tensor:
        """Returns the sum, its end token and padding: [batch, operands, digits] -> [batch, most digits of a sum + 1].

        It adds column by column with carries, so that no number is too long for an int64.
        """
        operands = digits.shape[1]
        width = self._most_digits_of_sum(operands)
        columns = F.pad(digits.sum(1), (width - self.digits, 0))  # [batch, width]
        carry = torch.zeros_like(columns[:, 0])  # [batch]
        reversed_sum = []
        for column in columns.flip(1).unbind(1):
            carry = carry + column
            reversed_sum.append(carry % 10)
            carry = carry // 10
        padded_sum = torch.stack(reversed_sum, dim=1).flip(1)  # [batch, width]

        leading_zeros = (padded_sum[:, :-1].cumsum(1) == 0).sum(1, keepdim=True)  # [batch, 1]; a sum of 0 keeps one
        ended = F.pad(F.pad(padded_sum, (0, 1), value=END), (0, width), value=PAD)  # [batch, 2 * width + 1]
        place = torch.arange(width + 1, device=digits.device)
        return ended.gather(1, place + leading_zeros)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        operands = self._read(tokens)
        labels = [IGNORE] * _padding_in_front(tokens)
        columns = [0] * self.digits
        for number, operand in enumerate(operands, start=1):
            columns = [column + int(digit) for column, digit in zip(columns, operand, strict=True)]
            labels += [int(f"{column:02}"[-1 if number % 2 == 0 else -2]) for column in columns]
            labels.append(IGNORE)  # a sign has no column
        answer = [int(digit) for digit in str(sum(int(operand) for operand in operands))]
        labels[-1:] = [*answer, END]  # from "=" on
        return (labels + [IGNORE] * len(tokens))[: len(tokens)]

    def render(self, tokens: Sequence[int]) -> str:
        """Returns the sum as it is done on paper, with the carries on top, and as one line of text."""
        operands = self._read(tokens)
        answer = str(sum(int(operand) for operand in operands))
        lines = [f"{_several(len(operands), 'operand')} of {_several(self.digits, 'digit')}: answer {answer}", ""]
        lines += _on_paper(operands, answer)
        lines += ["", *_wrapped([f"{operand}+" for operand in operands[:-1]] + [f"{operands[-1]}={answer}"])]
        return "\n".join(lines)

    def document(self, tokens: Sequence[int]) -> str:
        """Returns the sum as one line of text, without padding: ``315+120+045+824=1304``."""
        operands = self._read(tokens)
        return f"{'+'.join(operands)}={sum(int(operand) for operand in operands)}"

    def _read(self, tokens: Sequence[int]) -> list[str]:
        """Returns the operands as written, without padding; what follows the first "=" is not read."""
        ids = [int(token) for token in tokens]
        for token in ids:
            check_integer(self.name, "token", token, 0, len(VOCABULARY) - 1)
        if EQUALS not in ids:
            text = "".join(VOCABULARY[token] for token in ids)
            raise InputError(f"task addition: tokens={text!r}; allowed are operands followed by '='")
        question = ids[_padding_in_front(ids) : ids.index(EQUALS)]
        operands = "".join(VOCABULARY[token] for token in question).split("+")
        for operand in operands:
            if len(operand) != self.digits or not operand.isdecimal():
                raise InputError(f"task addition: operand={operand!r}; allowed are numbers of {self.digits} digits")
        return operands


def _padding_in_front(tokens: Sequence[int]) -> int:
    return next((place for place, token in enumerate(tokens) if token != PAD), len(tokens))


def _column_labels(digits: Tensor) -> Tensor:
    """Returns a digit of each column's sum so far: [batch, operands, digits] -> [batch, operands * (digits + 1)].

    The last digit alone can be found by adding one operand per layer, and models that had learned this stayed with it;
    the digit before it needs the size of the sum, which attention over all operands gives.
    """
    columns = digits.cumsum(1)  # [batch, operands, digits]
    labels = columns // 10 % 10
    labels[:, 1::2] = columns[:, 1::2] % 10
    return F.pad(labels, (0, 1), value=IGNORE).flatten(1)


def _on_paper(operands: Sequence[str], answer: str) -> list[str]:
    columns = max(len(answer), 1 + len(operands[0]))  # one is for the +
    carries = [0]  # into the units, the tens, …
    for place in range(1, columns):
        column = (int(operand[-place]) for operand in operands if place <= len(operand))
        carries.append((carries[-1] + sum(column)) // 10)
    cell = 1 + max(2, len(str(max(carries))))

    def row(before: str, cells: Sequence[object]) -> str:
        content = "".join(str(one).rjust(cell) for one in cells)
        return (before.ljust(5) + content.rjust(columns * cell)).rstrip()

    lines = [row("carry", [carry or "" for carry in reversed(carries)])]
    lines += [row("", ["+" if index else "", *operand]) for index, operand in enumerate(operands)]
    lines += [" " * 5 + "─" * (columns * cell), row("", list(answer))]
    return lines


def _several(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _wrapped(terms: Sequence[str]) -> list[str]:
    """Returns the terms joined to lines of at most 100 columns; a longer term has a line of its own."""
    lines = [""]
    for term in terms:
        if lines[-1] and len(lines[-1]) + len(term) > 100:
            lines.append("")
        lines[-1] += term
    return lines
