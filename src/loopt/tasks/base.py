"""The base class of tasks: a sampler of examples that runs on any device, and an exact solver to check it against."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from loopt.errors import InputError, require
from loopt.limits import LARGEST, require_affordable
from loopt.random_bits import Stream
from loopt.source import Codec, Source, Split

IGNORE = -100
"""Stands where a position has no label; the loss and exact match leave it out."""

Supervision = Literal["last", "every"]
"""Which positions the loss counts: those of the answer, or every one that has a label."""

MAX_INDEX = 2**62
BYTES_OF_TOKEN = 64
"""Memory that drawing one token of an example takes at least: some eight tensors of 64-bit integers."""


@dataclass(frozen=True)
class Batch:
    """Token ids and their labels. A label stands at the position whose output predicts it: nothing is left to shift."""

    tokens: Tensor
    """[batch, length] int64: the model's input."""
    targets: Tensor
    """[batch, length] int64: the labels of the loss, IGNORE elsewhere."""
    answers: Tensor
    """[batch, length] int64: the labels of exact match, IGNORE elsewhere; an example is right if all of its are."""


@dataclass(frozen=True, kw_only=True)
class Task(Source):
    """A generator of problems with an exact solver. Every task adds its own settings, which are plain values too."""

    train_examples: int | None = None
    """Size of the training set, which is repeated every epoch; none: every example is new."""
    answer_weight: float = 0.0
    """Share of the loss that goes to the answers, which exact match scores; the rest goes to all labels alike."""
    target_accuracy: float | None = None
    """Stop training when validation accuracy reaches this; none: take all steps."""

    def __post_init__(self) -> None:
        if self.train_examples is not None:
            allowed = 1 <= self.train_examples <= MAX_INDEX
            require(allowed, "train_examples", self.train_examples, "1 to 2^62, or none")
        require(0 <= self.answer_weight <= 1, "answer_weight", self.answer_weight, "0 to 1")
        if self.target_accuracy is not None:
            require(0 < self.target_accuracy <= 1, "target_accuracy", self.target_accuracy, "more than 0, at most 1")

    @property
    @abstractmethod
    def vocabulary(self) -> tuple[str, ...]:
        """Returns the tokens by id."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Returns the number of tokens in the longest training example."""

    @property
    def mixture(self) -> tuple[Task, ...]:
        """Returns the tasks, of one length each, that share a training batch equally. A task of one length returns
        itself; one of several lengths is a mixture, with one vocabulary, so that no work goes into padding."""
        return (self,)

    @property
    def tests(self) -> dict[str, Task]:
        """Returns the tasks that a trained model is scored on, by their names in tables."""
        return {self.name: self}

    @property
    def difficulties(self) -> dict[str, Task]:
        """Returns a task for each difficulty that this one mixes, the easiest first; often none."""
        return {}

    @property
    def loops(self) -> int | None:
        """Returns how many loops the model is to run on these problems; None: as many as its plan has."""
        return None

    def for_loops(self, loops: int) -> Task:
        """Returns the problems for a model that runs so many loops; these, unless their size goes by the loops."""
        return self

    @property
    def loops_when_whole(self) -> int | None:
        """Returns from how many loops on training has whole problems, where smaller ones go before; None: always."""
        return None

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    @property
    def max_len(self) -> int:
        return max(task.length for task in (self, *self.tests.values()))

    @property
    def smallest_batch(self) -> int:
        return len(self.mixture)

    def sample(
        self, indices: Tensor | range, seed: int, split: Split, device: torch.device | str | None = None
    ) -> Batch:
        """Returns the examples with these indices, which do not depend on what else is in the batch.

        Without ``device`` they are drawn where ``indices`` are. Indices on an accelerator are trusted not to be
        negative, since looking at them would make the host wait.
        """
        check_integer(self.name, "seed", seed, -(2**63), 2**63 - 1)
        check_choice(self.name, "split", split, get_args(Split))
        what = f"task {self.name}: {len(indices):,} examples of {self.length:,} tokens"
        require_affordable(what, memory=BYTES_OF_TOKEN * len(indices) * self.length)
        return self.draw(_index_tensor(self.name, indices, device), Stream(self.name, seed, split))

    @abstractmethod
    def draw(self, indices: Tensor, stream: Stream) -> Batch:
        """Draws the examples with these [batch] indices, all randomness from ``stream``, never waiting for a device."""

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of an example typed as text: tokens of the vocabulary, with or without spaces."""
        ids = {word: i for i, word in enumerate(self.vocabulary)}
        word_or_space = re.compile("|".join([*map(re.escape, sorted(ids, key=len, reverse=True)), r"\s"]))
        tokens, at = [], 0
        while at < len(text):
            found = word_or_space.match(text, at)
            if found is None:
                allowed = " ".join(self.vocabulary[:40])
                raise InputError(f"task {self.name}: {text[at : at + 12]!r} in the input; allowed are {allowed}")
            if found[0] in ids:
                tokens.append(ids[found[0]])
            at = found.end()
        return tokens

    def codec(self, run: Path) -> Codec:
        return TaskCodec(self)

    @abstractmethod
    def solve(self, tokens: Sequence[int]) -> list[int]:
        """Returns the right label at each position of one example, IGNORE where the problem defines none.

        A solver is plain Python from the problem's definition and shares no code with the sampler. All targets and
        answers of a batch agree with it. It never reads an answer out of ``tokens``, even where they contain it, as
        in a sum written out with its result.
        """

    @abstractmethod
    def render(self, tokens: Sequence[int]) -> str:
        """Returns one example as text for people, with its answer and how it comes about."""

    def document(self, tokens: Sequence[int]) -> str:
        """Returns one example as a document for language models: the question in plain text, and its answer.

        Different examples have different documents. A task that has none is refused as a source of text.
        """
        raise InputError(f"task {self.name}: has no documents for language models")


class TaskCodec(Codec):
    """Turns the words of a task's vocabulary into tokens and back."""

    def __init__(self, task: Task) -> None:
        self._task, self._words = task, task.vocabulary
        self._space = "" if all(len(word) == 1 for word in self._words) else " "

    @property
    def vocab_size(self) -> int:
        return len(self._words)

    def encode(self, text: str) -> list[int]:
        return self._task.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._space.join(self._words[token] for token in tokens)

    def stream(self) -> Callable[[int], str]:
        return lambda token: self._words[token] + self._space


def check_integer(task: str, field: str, value: Any, at_least: int, at_most: int = LARGEST) -> None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not (is_integer and at_least <= value <= at_most):
        raise InputError(f"task {task}: {field}={value!r}; allowed are integers, {at_least} to {at_most}")


def different_integers(task: str, field: str, given: Any, at_least: int, at_most: int = LARGEST) -> tuple[int, ...]:
    """Returns ``given`` as a tuple, checked: the command line gives one, JSON a list, and PHop(p=3) reads best."""
    values = tuple(given) if isinstance(given, list | tuple) else (given,)
    for value in values:
        check_integer(task, field, value, at_least, at_most)
    if len(set(values)) < len(values):
        raise InputError(f"task {task}: {field}={values}; allowed are different integers, each once")
    return values


def check_choice(task: str, field: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"task {task}: {field}={value!r}; allowed are {', '.join(choices)}")


def _index_tensor(task: str, indices: Tensor | range, device: torch.device | str | None) -> Tensor:
    if isinstance(indices, range):
        for end in (indices[0], indices[-1]) if indices else ():
            check_integer(task, "index", end, 0, MAX_INDEX)
        return torch.arange(indices.start, indices.stop, indices.step, dtype=torch.int64, device=device)
    if not isinstance(indices, Tensor) or indices.dtype != torch.int64 or indices.dim() != 1:
        raise InputError(f"task {task}: indices={indices!r}; allowed are a range or an int64 tensor of one dimension")
    if indices.device.type == "cpu" and len(indices):
        check_integer(task, "index", int(indices.min()), 0, MAX_INDEX)
        check_integer(task, "index", int(indices.max()), 0, MAX_INDEX)
    return indices.to(device)
