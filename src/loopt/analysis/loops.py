"""A model measured with several numbers of loops, on what it was trained for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loopt.model import LoopedTransformer
from loopt.scoring import exact_match, text_loss
from loopt.source import Split
from loopt.tasks import Task
from loopt.text.source import Text


@dataclass(frozen=True)
class LoopPoint:
    """A model's score on one test, with so many loops."""

    loops: int | None
    """None: as many as in training."""
    test: str
    """Which test of the task, or ``text``."""
    count: int
    """Of examples, or of tokens of text."""
    loss: float
    """Mean loss in nats, per answer token or per token of text."""
    accuracy: float | None
    """Exact match; None of text."""


def task_points(
    model: LoopedTransformer, tests: Mapping[str, Task], loops: list[int | None], split: Split, examples: int
) -> Iterator[LoopPoint]:
    """Yields a point for each number of loops and each test, as soon as it is measured; None: as many as each test
    asks for."""
    for asked in loops:
        for name, test in tests.items():
            count = test.loops if asked is None else asked
            score = exact_match(model, test, split, examples, count)
            yield LoopPoint(count, name, score.examples, score.loss, score.accuracy)


def text_points(
    model: LoopedTransformer, text: Text, loops: list[int | None], split: Split, sequences: int
) -> Iterator[LoopPoint]:
    """Yields a point for each number of loops; ``sequences`` are at most all that were held out."""
    length = model.config.max_len
    sequences = min(sequences, text.tokens.sequences(split, length))
    for count in loops:
        yield LoopPoint(count, "text", sequences * length, text_loss(model, text.tokens, split, sequences, count), None)
