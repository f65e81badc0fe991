"""Synthetic tasks with known answers. ``get("phop", p=3, n=24)`` makes one, and ``names()`` lists them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from loopt.errors import InputError
from loopt.random_bits import Stream
from loopt.tasks.addition import Addition
from loopt.tasks.after_start import AfterStart
from loopt.tasks.assignment import VariableAssignment
from loopt.tasks.base import IGNORE, Batch, Task
from loopt.tasks.binary_addition import BinaryAddition
from loopt.tasks.examples import check_examples
from loopt.tasks.group import GroupComposition
from loopt.tasks.hop_per_loop import HopPerLoop
from loopt.tasks.igsm import IGSM
from loopt.tasks.phop import PHop
from loopt.tasks.registry import import_tasks, known, origin_of, register

__all__ = [
    "IGNORE",
    "IGSM",
    "OF_BUILT_MODELS",
    "Addition",
    "AfterStart",
    "Batch",
    "BinaryAddition",
    "GroupComposition",
    "HopPerLoop",
    "PHop",
    "Stream",
    "Task",
    "VariableAssignment",
    "check_examples",
    "get",
    "import_tasks",
    "known",
    "names",
    "origin_of",
    "register",
]

for _task in (PHop, HopPerLoop, Addition, GroupComposition, VariableAssignment, IGSM):
    register(_task)

OF_BUILT_MODELS: dict[str, type[Task]] = {task.name: task for task in (AfterStart, BinaryAddition)}
"""By name, tasks of the runs that ``loopt prove --save`` writes. They have no preset, and are not listed."""


def names() -> tuple[str, ...]:
    return tuple(known())


def get(name: str, **settings: Any) -> Task:
    """Returns the task of that name; ``settings`` are fields of its class, and those not given keep their defaults."""
    if name not in known():
        raise InputError(f"task {name!r} is not known; allowed are {', '.join(known())}, and what --import adds")
    task = known()[name]
    allowed = [field.name for field in fields(task)]
    for setting in settings:
        if setting not in allowed:
            raise InputError(f"task {name}: no setting {setting!r}; allowed are {', '.join(allowed)}")
    return task(**settings)
