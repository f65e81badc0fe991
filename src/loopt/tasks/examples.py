"""A look at a few examples of a task before a model trains on it: mistakes that would otherwise be found much later."""

from __future__ import annotations

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
        for split in get_args(Split):
            batch = part.sample(range(EXAMPLES), 0, split)
            _check_tensors(part, batch)
            _check_repeats(part, batch, part.sample(range(EXAMPLES // 2, EXAMPLES), 0, split))
        _check_solver(part, batch)


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
