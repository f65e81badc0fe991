"""Another task's examples after a token `#`: what the theorems' built models read.

The constructions need a position in front of the input that holds nothing, or the identity. A model that was built so
solves the task as it is, but for the `#` it reads first:

>>> from loopt.tasks.phop import PHop
>>> task = AfterStart(task=PHop(p=(1,), n=4, alphabet=2))
>>> task.vocabulary, task.length, task.encode("abab")
(('a', 'b', '⊥', '#'), 5, [3, 0, 1, 0, 1])
>>> task.solve(task.encode("abab"))
[-100, 2, 2, 1, 0]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from loopt.errors import InputError, require
from loopt.random_bits import Stream
from loopt.tasks.base import IGNORE, Batch, Task
from loopt.tasks.group import GroupComposition


@dataclass(frozen=True, kw_only=True)
class AfterStart(Task):
    """Another task's examples, with a token `#` before each."""

    name: ClassVar[str] = "after_start"

    task: Task = field(default_factory=GroupComposition)
    """The task. What any task has, such as train_examples, is set beside it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for shared in fields(Task):
            value = getattr(self.task, shared.name)
            allowed = f"{shared.default}; {shared.name} itself counts"
            require(value == shared.default, f"task.{shared.name}", value, allowed, InputError)

    @classmethod
    def of(cls, task: Task) -> AfterStart:
        """Returns the task after `#`, with what any task has beside it."""
        shared = {field.name: getattr(task, field.name) for field in fields(Task)}
        return cls(task=replace(task, train_examples=None, answer_weight=0.0, target_accuracy=None), **shared)

    @property
    def start(self) -> int:
        """Returns the token that stands first, the last of the vocabulary."""
        return self.task.vocab_size

    @property
    def vocabulary(self) -> tuple[str, ...]:
        words = self.task.vocabulary
        start = "#"
        while start in words:
            start += "#"
        return (*words, start)

    @property
    def length(self) -> int:
        return self.task.length + 1

    @property
    def mixture(self) -> tuple[Task, ...]:
        return tuple(replace(self, task=one) for one in self.task.mixture)

    @property
    def tests(self) -> dict[str, Task]:
        return self._all_after_start(self.task.tests)

    @property
    def difficulties(self) -> dict[str, Task]:
        return self._all_after_start(self.task.difficulties)

    def _all_after_start(self, tasks: dict[str, Task]) -> dict[str, Task]:
        return {name: replace(self, task=one) for name, one in tasks.items()}

    def draw(self, indices: Tensor, stream: Stream) -> Batch:
        batch = self.task.draw(indices, stream)
        labels = (functional.pad(one, (1, 0), value=IGNORE) for one in (batch.targets, batch.answers))
        return Batch(functional.pad(batch.tokens, (1, 0), value=self.start), *labels)

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of an example typed as text, with or without `#`."""
        return [self.start, *self.task.encode(text.lstrip().removeprefix(self.vocabulary[-1]))]

    def solve(self, tokens: Sequence[int]) -> list[int]:
        return [IGNORE, *self.task.solve(self._after_start(tokens))]

    def render(self, tokens: Sequence[int]) -> str:
        return f"after {self.vocabulary[-1]}: {self.task.render(self._after_start(tokens))}"

    def _after_start(self, tokens: Sequence[int]) -> list[int]:
        first, *rest = [int(token) for token in tokens] or [-1]
        if first != self.start:
            raise InputError(f"task {self.name}: tokens start with {first}; allowed is {self.start}, the token #")
        return rest


def without_start(task: Task) -> tuple[Task, int | None]:
    """Returns the task without the token that its model reads first, and that token where there is one."""
    return (task.task, task.start) if isinstance(task, AfterStart) else (task, None)
