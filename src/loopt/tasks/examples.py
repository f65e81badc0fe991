"""A look at a few examples of a task before a model trains on it: mistakes that would otherwise be found much later."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.source import Split
from loopt.tasks.base import IGNORE, Batch, Task
from loopt.tasks.registry import origin_of

EXAMPLES = 8


def check_examples(task: Task) -> None:
    """Raises an InputError where a task of the user's own does not keep what ``Task`` promises: shapes, token ids, an
    example that is the same in every batch, labels that its solver agrees with."""
    if origin_of(task.name) is None:
        return  # loopt's tests have looked at its own, and large ones take their solvers long
    for part in {id(one): one for one in (*task.mixture, *task.tests.values())}.values():
        with _naming_what_is_raised(part):
            for split in get_args(Split):
                batch = part.sample(range(EXAMPLES), 0, split)
                _check_tensors(part, batch)
                _check_repeats(part, batch, part.sample(range(EXAMPLES // 2, EXAMPLES), 0, split))
            _check_solver(part, batch)


@contextmanager
def _naming_what_is_raised(task: Task) -> Iterator[None]:
    """Makes one line of any error that the task's own code raises, with the place in its file."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        file = inspect.getsourcefile(type(task)) or ""
        of_task = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == file]
        place = f" in {Path(file).name}, line {of_task[-1].lineno}" if of_task else ""
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise _wrong(task, f"{what}{place}; with the settings {_settings(task)}") from error


def _settings(task: Task) -> str:
    return ", ".join(f"{field.name}={getattr(task, field.name)}" for field in fields(task) if field.init)[:200]


def _wrong(task: Task, what: str) -> InputError:
    return InputError(f"task {task.name}: {what}")


def _check_tensors(task: Task, batch: Batch) -> None:
    size = task.vocab_size
    for name in ("tokens", "targets", "answers"):
        values: Tensor = getattr(batch, name)
        if values.dtype != torch.int64 or values.dim() != 2 or len(values) != EXAMPLES:
            shape = f"{str(values.dtype).removeprefix('torch.')} {list(values.shape)}"
            raise _wrong(task, f"{name} of {EXAMPLES} examples are {shape}; allowed is int64 [{EXAMPLES}, length]")
        if values.shape != batch.tokens.shape or values.shape[1] > task.length:
            shape = f"{list(values.shape)}, tokens {list(batch.tokens.shape)}"
            raise _wrong(task, f"{name} are {shape}; allowed is one shape for all, up to length={task.length} wide")
        odd = values[(values < 0) | (values >= size)]
        odd = odd if name == "tokens" else odd[odd != IGNORE]
        if len(odd):
            allowed = f"0 to {size - 1}, the vocabulary's" + ("" if name == "tokens" else ", and IGNORE")
            raise _wrong(task, f"{name} have {int(odd[0])}; allowed are {allowed}")
    if not (batch.answers != IGNORE).any(1).all():
        raise _wrong(task, "an example has no answers; allowed is one or more labels for exact match in each")


def _check_repeats(task: Task, batch: Batch, later_half: Batch) -> None:
    for name in ("tokens", "targets", "answers"):
        if not torch.equal(getattr(batch, name)[EXAMPLES // 2 :], getattr(later_half, name)):
            raise _wrong(
                task,
                f"draw gave other {name} for the same indices in another batch; allowed is randomness from its stream "
                "alone, by index",
            )


def _check_solver(task: Task, batch: Batch) -> None:
    for row, tokens in enumerate(batch.tokens.tolist()):
        solved = task.solve(tokens)
        if len(solved) != len(tokens):
            raise _wrong(task, f"solve gave {len(solved)} labels for {len(tokens)} tokens; allowed is one for each")
        for name in ("targets", "answers"):
            labels = getattr(batch, name)[row].tolist()
            for place, (label, right) in enumerate(zip(labels, solved, strict=True)):
                if label not in (IGNORE, right):
                    raise _wrong(
                        task,
                        f"{name} have {label} at position {place} of {tokens[:40]}, where solve has {right}; allowed "
                        "is one label for both",
                    )
