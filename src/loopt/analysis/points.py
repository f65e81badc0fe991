"""A trained model as the analyses see it: its plan, its size, what it trained on, and its metrics, read from a run or a
result file.

Of a result file these fields are read: ``plan``, ``seed``, ``config`` (of which follow parameters and tokens),
``metrics`` (name to number), ``standard_errors`` (the same names) and ``text_losses`` (of perplexities, a number for
each sequence). A file without ``metrics``, such as one of a task, has those of its ``result``: ``accuracy``, ``loss``
and, of a language model, ``perplexity``. What ``loopt eval RUN --suite`` wrote has a score and bits per byte for each
task and group: ``svamp``, ``svamp/bits_per_byte``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loopt.analysis.gap import Measured
from loopt.errors import InputError, RunError
from loopt.files import read_json
from loopt.model import ModelConfig
from loopt.plan import Block, LoopPlan
from loopt.runs import Run, TrainConfig, codec
from loopt.text.source import Text

MEASURED_BY_TRAINING = ("perplexity", "accuracy", "loss")


@dataclass(frozen=True)
class Point:
    """One trained model and its metrics."""

    name: str
    plan: LoopPlan
    metrics: dict[str, float]
    standard_errors: dict[str, float] = field(default_factory=dict)
    """Of some metrics, or all."""
    seed: int = 0
    parameters: dict[int, int] | None = None
    """How many parameters run once, how many twice, and so on; None where the file has no config."""
    tokens: int | None = None
    """How many tokens it was trained on; None where the file has no config."""
    text: str | None = None
    """Which text it was measured on, in sequences of which length; None where the file has no config, or of a task."""
    text_losses: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Perplexity -> the mean loss per token of each sequence of its text; none where the file has none."""

    @property
    def loss(self) -> float | None:
        """Returns the mean loss per token, in nats, by its name or as the logarithm of the perplexity."""
        if "loss" in self.metrics:
            return self.metrics["loss"]
        return math.log(self.metrics["perplexity"]) if self.metrics.get("perplexity", 0) > 0 else None

    def measured(self, metric: str) -> Measured:
        return Measured(self.metrics[metric], self.standard_errors.get(metric))


def read_point(path: Path) -> Point:
    """Returns the point of a finished run's directory, or of a result file."""
    if path.is_dir():
        run = Run.load(path)
        result = run.read_result()
        if result is None:
            raise RunError(f"{path}: not finished; allowed is a run with its result.json, or a result file")
        return _of_config(Point(path.name, run.config.model.plan, *_measured(result), run.config.seed), run.config)
    data = read_json(path, InputError)
    if isinstance(data, dict) and isinstance(data.get("settings"), dict) and "groups" in data:
        data = {"plan": data["settings"].get("plan"), **_of_suite(data, path)}
    if not isinstance(data, dict) or "plan" not in data:
        raise InputError(f"{path}: no plan; allowed is a run's directory or a result file with plan and metrics")
    if "metrics" in data:
        metrics = _numbers(data["metrics"], f"{path}: metrics")
        errors = _numbers(data.get("standard_errors", {}), f"{path}: standard_errors")
    elif isinstance(data.get("result"), dict):
        metrics, errors = _measured(data["result"])
    else:
        metrics, errors = {}, {}
    if not metrics:
        raise InputError(f"{path}: no metrics; allowed is a file with some, by name, in its field metrics")
    seed = codec.decode(int, data.get("seed", 0), f"{path}: seed")
    plan = codec.decode(LoopPlan, data["plan"], f"{path}: plan")
    losses = codec.decode(dict[str, tuple[float, ...]], data.get("text_losses", {}), f"{path}: text_losses")
    point = Point(path.stem, plan, metrics, errors, seed, text_losses=losses)
    if not isinstance(data.get("config"), dict):
        return point
    try:
        return _of_config(point, codec.from_json(data["config"]))
    except InputError as error:
        raise InputError(f"{path}: config: {error}") from None


def log_of(perplexity: str) -> str:
    """Returns the name of the logarithm of a perplexity.

    >>> log_of("validation_perplexity")
    'validation_log_perplexity'
    """
    return perplexity.replace("perplexity", "log_perplexity")


def shared_metrics(points: Sequence[Point], asked: Sequence[str]) -> list[str]:
    """Returns the metrics asked for, or all, that every point has."""
    shared = [name for name in points[0].metrics if all(name in point.metrics for point in points)]
    for name in asked:
        if name not in shared:
            allowed = " | ".join(shared) or "nothing"
            raise InputError(f"metrics={name}: allowed is {allowed}, which every file has")
    if not shared:
        raise InputError("metrics: the files have none in common; allowed are files of the same evaluation")
    return list(dict.fromkeys(asked)) or shared


def _of_config(point: Point, config: TrainConfig) -> Point:
    tokens = config.steps * config.batch_size * config.model.max_len
    source, length = config.source, config.model.max_len
    text = f"{source.fingerprint} in {length}" if isinstance(source, Text) else None
    return replace(point, parameters=parameters_by_loops(config.model), tokens=tokens, text=text)


def parameters_by_loops(config: ModelConfig) -> dict[int, int]:
    """Returns how many parameters run how often. Embeddings, readout and what a loop has besides its layers run once.

    >>> sizes = {"d_model": 8, "n_heads": 2, "d_ff": 16, "vocab_size": 10, "max_len": 4}
    >>> parameters_by_loops(ModelConfig("2x3", **sizes)), parameters_by_loops(ModelConfig("2x(1,3)", **sizes))
    ({1: 168, 3: 1056}, {1: 1224, 3: 1056})
    """
    one, two = (replace(config, plan=LoopPlan((Block(layers, 1),))).parameters() for layers in (1, 2))
    looped: dict[int, int] = {}
    for block in config.plan.blocks:
        if block.loops > 1:
            looped[block.loops] = looped.get(block.loops, 0) + block.layers * (two - one)
    return {1: config.parameters() - sum(looped.values()), **looped}


def _measured(result: dict[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the metrics that training left, and the standard error of an accuracy: a share of so many examples."""
    known = {name: result[name] for name in MEASURED_BY_TRAINING if result.get(name) is not None}
    metrics = _numbers(known, "result")
    share, examples = metrics.get("accuracy"), result.get("test_examples")
    one_test = len(result.get("accuracies", {})) == 1
    if share is None or not one_test or not isinstance(examples, int) or not (examples > 0 and 0 <= share <= 1):
        return metrics, {}
    return metrics, {"accuracy": math.sqrt(share * (1 - share) / examples)}


def _of_suite(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """Returns the metrics of a suite's scores, and their standard errors."""
    metrics, errors = {}, {}
    try:
        for name, scored in {**data["tasks"], **data["groups"], "all_tasks": data["all_tasks"] or {}}.items():
            for metric, figure in ((name, scored.get("score")), (f"{name}/bits_per_byte", scored.get("bits_per_byte"))):
                if figure is not None:
                    metrics[metric], errors[metric] = figure["value"], figure["standard_error"]
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{path}: not as written; allowed is what loopt eval RUN --suite writes") from None
    return {"metrics": metrics, "standard_errors": errors}


def _numbers(found: Any, where: str) -> dict[str, float]:
    """Returns numbers by name; null is for what was not measured."""
    if not isinstance(found, dict):
        raise InputError(f"{where}: allowed is an object, from names to numbers")
    numbers = {}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise InputError(f"{where}.{name}={codec.shown(value)}: allowed is a number")
        if value is not None:
            numbers[name] = float(value)
    return numbers
