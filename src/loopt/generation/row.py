"""One row of a batch on its way from prompt to completion."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from loopt.errors import InputError
from loopt.generation.row_text import RowText
from loopt.generation.sampling import BROKEN
from loopt.generation.turns import RowTurn

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Piece:
    """What a new token adds to a row."""

    row: int
    """Number of the prompt, times samples, plus number of the sample."""
    token: int
    text: str
    """The text that is certain now; empty where a stop text or a character might go on, or without a codec."""


@dataclass(frozen=True)
class Completion:
    """What was generated for one prompt."""

    tokens: list[int]
    """The new tokens, the one that stopped it included."""
    text: str
    """Their text, without what stopped it; empty without a codec."""
    log_probabilities: list[float]
    """Of each token, under the model as it is: before temperature and filters."""
    finish: Finish
    """stop: at a stop text or token. length: as many tokens as were asked for, or as the model's max_len allows."""
    loops: list[int]
    """How many loops each token took to be found; with an exit rule they differ."""
    drafted: int
    """With self-speculation, how many tokens were drafted and verified,"""
    accepted: int
    """and how many of these were right."""


@dataclass
class Row:
    """A row: what it was given, and what it has so far."""

    prompt: list[int]
    key: int
    """Decides its random numbers."""
    limit: int
    """The most tokens it may get."""
    stop_ids: frozenset[int]
    text: RowText | None
    tokens: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    loops: list[int] = field(default_factory=list)
    finish: Finish | None = None
    drafted: int = 0
    accepted: int = 0

    def take(self, number: int, turn: RowTurn) -> list[Piece]:
        """Takes the tokens of a turn up to the one that finishes the row, which is number ``number``."""
        pieces = []
        self.drafted += turn.drafted
        self.accepted += turn.accepted
        for token, log_probability in zip(turn.tokens, turn.log_probabilities, strict=True):
            if self.finish is None:
                text = self._add(token)
                self.log_probabilities.append(log_probability)
                self.loops.append(turn.loops)
                pieces.append(Piece(number, token, text))
        return pieces

    def _add(self, token: int) -> str:
        """Adds a token, and returns the text that is now certain."""
        if token == BROKEN:
            read = len(self.prompt) + len(self.tokens)
            raise InputError(f"logits after {read} tokens are not numbers: the model's weights are broken")
        self.tokens.append(token)
        said = ""
        if token in self.stop_ids:
            self.finish = "stop"
        elif self.text is not None:
            said = self.text.push(token)
            self.finish = "stop" if self.text.stopped else None
        if self.finish is None and len(self.tokens) >= self.limit:
            self.finish = "length"
        if self.finish is not None and self.text is not None:
            said += self.text.finish()
        return said

    def completion(self) -> Completion:
        assert self.finish is not None
        text = "" if self.text is None else self.text.text
        figures = (self.log_probabilities, self.finish, self.loops, self.drafted, self.accepted)
        return Completion(self.tokens, text, *figures)
