"""The third stage: predictions become the two figures of every task, of every group, and of all tasks.

Every task has its metric, in percent, and the bits per byte of the first gold answer given the prompt, each with a
standard error. Bits per byte is a ratio: the bits of all answers over their bytes. Its standard error is that of the
ratio estimator (the delta method): with the residuals e = bits - ratio·bytes of n questions, the square root of
n/(n-1)·Σe², over the bytes of all. Both errors take questions to be independent; several about one passage are not
quite, so that for SQuADv2, DROP, QuAC and CoQA they are on the small side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loopt.errors import InputError
from loopt.evaluation.catalogue import GROUPS, TASKS, EvalTask
from loopt.evaluation.exchange import Prediction, Request
from loopt.evaluation.metrics import METRICS


@dataclass(frozen=True)
class Figure:
    """A measured number with its standard error, which one question alone does not give."""

    value: float
    standard_error: float | None


@dataclass(frozen=True)
class TaskScore:
    """What a model scored on a task."""

    task: str
    metric: str
    """What ``score`` measures, such as ``exact match``."""
    score: Figure | None
    """In percent; None where nothing was generated."""
    bits_per_byte: Figure
    others: dict[str, Figure]
    """Further metrics, in percent, by their names."""
    examples: int
    shots: int
    shots_dropped: int
    """How many shots, of all prompts together, did not fit the model's context."""
    prompts_cut: int
    """How many prompts lost a shot."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TaskScore:
        """Returns what ``dataclasses.asdict`` gave."""
        try:
            others = {name: Figure(**figure) for name, figure in data["others"].items()}
            figures = {"score": _figure(data["score"]), "bits_per_byte": Figure(**data["bits_per_byte"])}
            return cls(**{**data, **figures, "others": others})
        except (KeyError, TypeError, AttributeError) as problem:
            raise InputError(f"no scores of a task as loopt writes them: {problem!r}") from None


@dataclass(frozen=True)
class MeanScore:
    """The mean over tasks, each once."""

    tasks: int
    score: Figure | None
    """None where a task has none."""
    bits_per_byte: Figure


@dataclass(frozen=True)
class SuiteScores:
    """What a model scored on a suite."""

    tasks: dict[str, TaskScore]
    groups = {str(group): _mean_of(by_task, its) for group, its in names.items() if set(its) <= set(by_task)}
    return SuiteScores(by_task, groups, _mean_of(by_task, real) if set(real) <= set(by_task) else None)


def _mean_of(scores: Mapping[str, TaskScore], names: Sequence[str]) -> MeanScore:
    tasks = [scores[name] for name in names]
    figures = [task.score for task in tasks if task.score]
    score = _mean_figure(figures) if len(figures) == len(tasks) else None
    return MeanScore(len(tasks), score, _mean_figure([task.bits_per_byte for task in tasks]))


def _mean_figure(figures: Sequence[Figure]) -> Figure:
    """Returns the mean of figures that were measured independently."""
    errors = [figure.standard_error for figure in figures]
    known = [error for error in errors if error is not None]
    error = math.hypot(*known) / len(figures) if len(known) == len(figures) else None
    return Figure(math.fsum(figure.value for figure in figures) / len(figures), error)


def _figure(data: Mapping[str, Any] | None) -> Figure | None:
    return None if data is None else Figure(**data)


def _task_of(requests: Sequence[Request]) -> EvalTask:
    names = sorted({request.task for request in requests})
    if len(names) != 1 or names[0] not in TASKS:
        raise InputError(f"requests of the tasks {', '.join(names)[:200] or '(none)'}; allowed are those of one task")
    return TASKS[names[0]]


def _pair(requests: Sequence[Request], predictions: Sequence[Prediction]) -> list[tuple[Request, Prediction]]:
    """Returns each request with its prediction; an InputError where these do not match one to one."""
    made = {prediction.id: prediction for prediction in predictions if prediction.task == requests[0].task}
    asked = {request.id for request in requests}
    if len(made) < len(predictions) or not set(made) <= asked:
        raise InputError(f"{requests[0].task}: predictions for other questions, or two for one; allowed is one each")
    missing = [request.id for request in requests if request.id not in made]
    if missing:
        raise InputError(f"{requests[0].task}: no prediction for {missing[0][:80]!r} and {len(missing) - 1} more")
    return [(request, made[request.id]) for request in requests]
