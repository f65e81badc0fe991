"""What a model trains on and is measured on: the base of tasks, which make their examples, and of text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self, get_args

Split = Literal["train", "validation", "test"]
"""Validation chooses the checkpoint, and test scores it."""
SPLITS: tuple[Split, ...] = get_args(Split)

PLACE = {"place": True}
"""Marks a field that says where something lies: no part of the run's identity."""


class Codec(ABC):
    """Turns text into the tokens of a model and back."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Returns one more than the largest token."""

    @property
    def end(self) -> int | None:
        """Returns the token that ends a text, or None where there is no such token."""
        return None

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of each text."""
        return [self.encode(text) for text in texts]

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens."""

    @abstractmethod
    def stream(self) -> Callable[[int], str]:
        """Returns what decodes one token after the other: the text that each adds, which may be empty for a token that
        is only a part of a character."""


class Source(ABC):
    """A source of training examples. Each is a frozen dataclass whose fields, plain values all, are its settings."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Returns the number of different tokens."""

    @property
    def max_len(self) -> int:
        """Returns the tokens of the longest example, or 0 where the model's own max_len says how long they are."""
        return 0

    @property
    def smallest_batch(self) -> int:
        """Returns the fewest examples that a training batch can have."""
        return 1

    def prepared(self, run: Path, codec: Codec | None = None) -> Self:
        """Returns the source ready to be read; it may write what it needs beside the directory of the run. Text that is
        not in tokens yet is turned into those of ``codec``, where one is given."""
        return self

    def check_length(self, length: int) -> None:  # noqa: B027 (tasks have their own length)
        """Raises an InputError where no example of ``length`` tokens can be read."""

    @abstractmethod
    def codec(self, run: Path) -> Codec:
        """Returns what turns text into this source's tokens, by the files that the directory of a run keeps."""

    def run_files(self) -> dict[str, str]:
        """Returns the files, by name, that a run directory keeps so that its model can be used without the source."""
        return {}
