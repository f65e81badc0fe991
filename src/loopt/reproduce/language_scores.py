"""What is measured of one language model, part by part: text, then task after task."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from loopt.analysis.points import log_of
from loopt.errors import InputError
from loopt.evaluation.catalogue import TASKS
from loopt.evaluation.exchange import Request
from loopt.evaluation.lines import ANSWERS, fingerprint, write_lines
from loopt.evaluation.looped import LoopedModel
from loopt.evaluation.predict import predict_with
from loopt.evaluation.rendering import render
from loopt.evaluation.scores import Figure, MeanScore, TaskScore, mean, score, suite_scores
from loopt.model import LoopedTransformer, empty_model
from loopt.plan import Block, LoopPlan
from loopt.runs import Run
from loopt.runs.start import looped_block, mean_of_blocks
from loopt.scoring import perplexity
from loopt.scoring.perplexity import text_fit
from loopt.source import Split
from loopt.text.source import Text

PRIMITIVES = tuple(name for name, task in TASKS.items() if task.group == "primitives")
PREDICTIONS = "predictions"
"""The folder, beside a run, of what its best checkpoint says to every question."""
CHOICE = "choice"
"""Of a primitive: how often the right candidate is the likeliest of the problem's numbers."""

Numbers = dict[str, float]
Found = dict[str, Any]
Part = Callable[[], Found]
"""Measures something, and returns it as JSON has it."""


@dataclass(frozen=True)
class Questions:
    """The questions of every task that is measured, the same for all rows."""

    requests: Mapping[str, list[Request]]

    @classmethod
    def load(cls, data_dir: Path | None, primitives: int, limit: int) -> Questions:
        """Reads those of the 15 tasks from ``data_dir``; without it there are the four primitives alone."""
        return cls(
            {
                name: render(task, data_dir, limit if task.data else primitives)
                for name, task in TASKS.items()
                if task.data is None or data_dir is not None
            }
        )

    def first(self, count: int) -> Questions:
        return Questions({name: requests[:count] for name, requests in self.requests.items()})

    def hashes(self) -> dict[str, str]:
        """Returns a hash of each task's questions: where it is equal, models answered the same ones."""
        return {name: fingerprint(requests) for name, requests in self.requests.items()}


class Trained:
    """The model of a checkpoint, loaded when it is first needed."""

    def __init__(self, run: Run, device: torch.device, step: int, block: int | None = None) -> None:
        """The model as it is, or with its blocks of so many layers made one that loops."""
        self.run, self.device, self.step, self.block = run, device, step, block

    @cached_property
    def model(self) -> LoopedTransformer:
        model = self.run.load_model(self.step)
        return (looped_copy(model, self.block) if self.block else model).to(self.device)


class Measured:
    """A model that is measured, with any number of loops."""

    def __init__(self, trained: Trained, loops: int | None = None) -> None:
        self.trained, self.loops = trained, loops

    @cached_property
    def speaker(self) -> LoopedModel:
        model = self.trained.model
        return LoopedModel(model, model.codec, self.loops)

    def parts(self, questions: Questions, kept: bool = False) -> dict[str, Part]:
        """Returns what to measure, by name. Answers are generated where they are to be ``kept``, beside the run, and to
        primitives, where they are short; of other tasks only likelihoods are measured."""

        def of(name: str, requests: list[Request]) -> Part:
            return lambda: self._task(requests, kept or name in PRIMITIVES, kept)

        tasks = {
            f"{name}, {len(requests)} questions {fingerprint(requests)[:16]}": of(name, requests)
            for name, requests in questions.requests.items()
        }
        return {"text": lambda: self._text(with_validation=kept), **tasks}

    def _text(self, with_validation: bool) -> Found:
        config = self.trained.run.config
        numbers: Numbers = {}
        found: Found = {"text": numbers}
        assert isinstance(config.source, Text)
        splits: dict[Split, tuple[str, int]] = {"test": ("", config.test_examples)}
        if with_validation:
            splits["validation"] = ("validation_", config.eval_examples)
        for split, (prefix, sequences) in splits.items():
            fit = text_fit(self.trained.model, config.source.tokens, split, sequences, self.loops)
            numbers[f"{prefix}perplexity"] = perplexity(fit.loss)
            numbers[f"{prefix}log_perplexity"] = fit.loss
            numbers[f"{prefix}token_accuracy"] = 100 * fit.accuracy
            if with_validation:
                losses = found.setdefault("text_losses", {})
                losses[f"{prefix}perplexity"] = [round(loss, 6) for loss in fit.by_sequence]
        return found

    def _task(self, requests: list[Request], generate: bool, kept: bool) -> Found:
        predictions = list(predict_with(self.speaker, requests, generate=generate))
        found = score(requests, predictions)
        if kept:
            write_lines(self.trained.run.directory / PREDICTIONS / f"{found.task}{ANSWERS}", predictions)
        if found.task in PRIMITIVES:
            found = replace(found, others={**found.others, CHOICE: self._choice(requests)})
        return {"task": asdict(found)}

    def _choice(self, requests: list[Request]) -> Figure:
        """Returns how often the right one of a problem's numbers is the likeliest; one in five by guessing."""
        posed = [
            replace(request, id=f"{request.id} {number}", golds=(number,))
            for request in requests
            for number in candidates(request)
        ]
        nats = {one.id: one.gold_nats for one in predict_with(self.speaker, posed, generate=False)}
        likeliest = [min(candidates(one), key=lambda number: nats[f"{one.id} {number}"]) for one in requests]
        return mean([100.0 * (said in one.golds) for said, one in zip(likeliest, requests, strict=True)])


def candidates(request: Request) -> list[str]:
    """Returns the numbers of a variable assignment problem, of which one is the answer.

    >>> candidates(Request("assignment_math_1", "0", (), "a=1, b=25, c=a, d=b, d=?", ("25",), (), 4))
    ['1', '25']
    """
    return re.findall(r"= ?(\d+)", request.question)


def looped_copy(model: LoopedTransformer, block: int) -> LoopedTransformer:
    """Returns a model of as many loops as the given one has blocks of so many layers; a layer has the mean weights of
    those in its place."""
    depth = model.config.plan.depth
    plan = LoopPlan((Block(block, depth // block),))
    if looped_block(model.config.plan, plan) is None:
        raise InputError(f"plan {model.config.plan}: allowed are layers that run once, a multiple of {block}")
    looped = empty_model(replace(model.config, plan=plan))
    looped.load_state_dict(mean_of_blocks(model.state_dict(), block))
    looped.codec = model.codec
    return looped


def together(found: Sequence[Found]) -> dict[str, Any]:
    """Returns the metrics of all parts, and their standard errors where these are known: of the text, of each task, of
    the groups, and of all 15 tasks. The loss of each sequence that a perplexity is of is in ``text_losses``, if it was
    kept."""
    metrics: Numbers = {}
    errors: Numbers = {}

    def add(name: str, figure: Figure | None) -> None:
        if figure is not None:
            metrics[name] = figure.value
            if figure.standard_error is not None:
                errors[name] = figure.standard_error

    losses: dict[str, list[float]] = {}
    for part in found:
        metrics |= part.get("text", {})
        losses |= part.get("text_losses", {})
    for name, of_each in losses.items():
        if (error := mean(of_each).standard_error) is not None:
            errors |= {log_of(name): error, name: metrics[name] * error}
    suite = suite_scores([TaskScore.from_json(part["task"]) for part in found if "task" in part])
    for name, task in suite.tasks.items():
        add(name, task.score)
        add(f"{name}/bits_per_byte", task.bits_per_byte)
        for other, figure in task.others.items():
            add(f"{name}/{other}", figure)
    means: dict[str, MeanScore | None] = {**suite.groups, "all_tasks": suite.all_tasks}
    for name, group in means.items():
        if group is not None:
            add(name, group.score)
            add(f"{name}/bits_per_byte", group.bits_per_byte)
    if all(f"{name}/{CHOICE}" in metrics for name in PRIMITIVES):
        metrics[f"primitives/{CHOICE}"] = fmean(metrics[f"{name}/{CHOICE}"] for name in PRIMITIVES)
    return {"metrics": metrics, "standard_errors": errors, **({"text_losses": losses} if losses else {})}
