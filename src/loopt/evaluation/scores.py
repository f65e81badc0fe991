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
    questions_cut: int
    """How many questions lost their beginning, since they did not fit even alone."""

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
    groups: dict[str, MeanScore]
    """The groups of which every task was scored."""
    all_tasks: MeanScore | None
    """The mean over the 15 real tasks; None where one of them was not scored."""

    def to_json(self) -> dict[str, Any]:
        """Returns the scores as JSON has them."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SuiteScores:
        """Returns the scores that ``to_json`` gave; means are computed again."""
        if not isinstance(data, Mapping) or not isinstance(data.get("tasks"), Mapping):
            raise InputError("no scores of a suite: allowed is what loopt eval writes, with the field tasks")
        return suite_scores([TaskScore.from_json(task) for task in data["tasks"].values()])


def score(requests: Sequence[Request], predictions: Sequence[Prediction]) -> TaskScore:
    """Returns what the predictions for the requests of one task score; there has to be one for each."""
    task = _task_of(requests)
    pairs = _pair(requests, predictions)
    made = [prediction for _, prediction in pairs]
    dropped = [prediction.shots_dropped for prediction in made]
    metrics = METRICS[task.metric]
    figures: dict[str, Figure] = {}
    if all(prediction.text is not None for prediction in made):
        for name, compare in metrics.items():
            values = [compare((prediction.text or "").strip(), request.golds) for request, prediction in pairs]
            counted = [100 * value for value in values if value is not None]
            if counted:
                figures[name] = mean(counted)
    metric = next(iter(metrics))
    return TaskScore(
        task.name,
        metric,
        figures.pop(metric, None),
        bits_per_byte([one.gold_nats for one in made], [one.gold_bytes for one in made]),
        figures,
        examples=len(made),
        shots=max(len(request.shots) for request in requests),
        shots_dropped=sum(dropped),
        prompts_cut=sum(count > 0 for count in dropped),
        questions_cut=sum(prediction.tokens_cut > 0 for prediction in made),
    )


def mean(values: Sequence[float]) -> Figure:
    """Returns the mean of a sample with its standard error."""
    count, average = len(values), math.fsum(values) / len(values)
    if count == 1:
        return Figure(average, None)
    variance = math.fsum((value - average) ** 2 for value in values) / (count - 1)
    return Figure(average, math.sqrt(variance / count))


def bits_per_byte(nats: Sequence[float], sizes: Sequence[int]) -> Figure:
    """Returns the bits of all answers over their bytes, with the standard error of the ratio estimator."""
    bits = [one / math.log(2) for one in nats]
    count, total = len(bits), sum(sizes)
    ratio = math.fsum(bits) / total
    if count == 1:
        return Figure(ratio, None)
    residuals = math.fsum((one - ratio * size) ** 2 for one, size in zip(bits, sizes, strict=True))
    return Figure(ratio, math.sqrt(count / (count - 1) * residuals) / total)


def suite_scores(scores: Sequence[TaskScore]) -> SuiteScores:
    """Returns the scores by task, the means of the groups that are complete, and that of the real tasks."""
    given = {one.task: one for one in scores}
    if len(given) < len(scores):
        raise InputError("suite: a task is scored twice; allowed is once")
    for name in given:
        if name not in TASKS:
            raise InputError(f"suite: no task {name[:40]!r}; allowed are {', '.join(TASKS)}")
    by_task = {name: given[name] for name in TASKS if name in given}
    names = {group: [task.name for task in TASKS.values() if task.group == group] for group in GROUPS}
    real = [task.name for task in TASKS.values() if task.data is not None]
    groups: dict[str, MeanScore] = {
        group: _mean_of(by_task, names[group]) for group in GROUPS if set(names[group]) <= set(by_task)
    }
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
