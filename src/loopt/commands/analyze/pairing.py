"""How the errors of several models' scores go together: what is hard for one is hard for the others, so that
their differences are known better than the scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from loopt.analysis.gap import Covariance, covariance_of_rates
from loopt.analysis.points import Point, log_of
from loopt.errors import InputError
from loopt.evaluation.catalogue import GROUPS, TASKS
from loopt.evaluation.exchange import Prediction
from loopt.evaluation.lines import ANSWERS, read_lines
from loopt.scoring import perplexity


def paired(files: list[Path], points: list[Point]) -> dict[str, Covariance]:
    """Returns the covariance of the models' errors, by metric, of bits per byte and of perplexity, as far as the files
    tell it."""
    return _by_question(files) | _by_sequence(points)


def _by_question(files: list[Path]) -> dict[str, Covariance]:
    """Returns that of bits per byte, of the tasks that all files have answers to beside them; one answer alone tells no
    error."""
    folders = [path.with_suffix("") for path in files if path.suffix == ".json"]
    if len(folders) < len(files) or not all(folder.is_dir() for folder in folders):
        return {}
    of_task = {}
    for task in TASKS:
        answers = [folder / f"{task}{ANSWERS}" for folder in folders]
        if all(path.exists() for path in answers):
            read = [read_lines(Prediction, path) for path in answers]
            if len({tuple(one.id for one in predictions) for predictions in read}) > 1:
                raise InputError(f"{answers[1]}: answers to other questions than {answers[0]}")
            if len(read[0]) < 2:
                continue
            bits = [[one.gold_nats / math.log(2) for one in predictions] for predictions in read]
            of_task[task] = _tensor(covariance_of_rates(bits, [one.gold_bytes for one in read[0]]))
    groups: dict[str, list[str]] = {
        group: [task.name for task in TASKS.values() if task.group == group] for group in GROUPS
    }
    groups["all_tasks"] = [task.name for task in TASKS.values() if task.group != "primitives"]
    of_group = {
        group: torch.stack([of_task[task] for task in tasks]).sum(0) / len(tasks) ** 2
        for group, tasks in groups.items()
        if set(tasks) <= of_task.keys()
    }
    return {f"{name}/bits_per_byte": found.tolist() for name, found in (of_task | of_group).items()}


def _by_sequence(points: list[Point]) -> dict[str, Covariance]:
    """Returns that of perplexities and of their logarithms, where all have the losses of the same sequences."""
    found: dict[str, Covariance] = {}
    if len({point.text for point in points}) > 1:
        return found
    for name in set.intersection(*(set(point.text_losses) for point in points)):
        losses = [point.text_losses[name] for point in points]
        if min(map(len, losses)) < 2 or len(set(map(len, losses))) > 1:
            continue
        of_logarithms = _tensor(covariance_of_rates(losses, [1.0] * len(losses[0])))
        perplexities = _tensor([perplexity(sum(one) / len(one)) for one in losses])
        # A small change of the logarithm changes the perplexity by that share of it.
        of_perplexities = of_logarithms * perplexities.outer(perplexities)
        found |= {log_of(name): of_logarithms.tolist(), name: of_perplexities.tolist()}
    return found


def _tensor(numbers: Sequence[float] | Covariance) -> Tensor:
    """Returns numbers in float64: variances of differences are small differences of large ones."""
    return torch.tensor(numbers, dtype=torch.float64)
