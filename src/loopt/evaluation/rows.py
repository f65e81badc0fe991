"""Rows of a data set as read from a file or the hub: nothing in them is believed before it was checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loopt.errors import InputError


@dataclass(frozen=True)
class Row:
    """One row, whose fields are checked as they are taken."""

    fields: dict[str, Any]
    where: str
    """The file and line, for messages."""

    def text(self, name: str) -> str:
        """Returns a text on one line: whitespace within it, newlines too, becomes single spaces."""
        value = self._get(name)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(name, value, "a text that is not empty")
        return one_line(value)

    def has(self, name: str) -> bool:
        """Tells whether the row has a text of that name."""
        return bool(self.fields.get(name))

    def answers(self) -> tuple[str, ...]:
        """Returns the texts of the field ``answers``, in order, without those that are empty."""
        value = self._get("answers")
        if not isinstance(value, list) or not all(isinstance(answer, str) for answer in value):
            raise self.wrong("answers", value, "a list of texts")
        return tuple(one_line(answer) for answer in value if answer.strip())

    def answered(self) -> tuple[str, ...]:
        """Returns the answers, at least one."""
        answers = self.answers()
        if not answers:
            raise self.wrong("answers", [], "a list of one text or more")
        return answers

    def turns(self) -> list[Row]:
        """Returns the turns of a dialog as rows of their own."""
        value = self._get("turns")
        if not isinstance(value, list) or not value or not all(isinstance(turn, dict) for turn in value):
            raise self.wrong("turns", value, "a list of objects with question and answers")
        return [Row(turn, f"{self.where}, turn {number}") for number, turn in enumerate(value, 1)]

    def wrong(self, name: str, value: object, allowed: str) -> InputError:
        """Returns the error for a field with a value that is not allowed."""
        return InputError(f"{self.where}: {name}={str(value)[:40]!r}; allowed is {allowed}")

    def _get(self, name: str) -> Any:
        if name not in self.fields:
            has = ", ".join(list(self.fields)[:12]) or "nothing"
            raise InputError(f"{self.where}: no field {name!r}; it has {has[:200]}")
        return self.fields[name]


def one_line(text: str) -> str:
    """Returns a text with all its whitespace, newlines too, as single spaces."""
    return " ".join(text.split())
