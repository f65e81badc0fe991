"""What is measured of a language model: perplexity and token accuracy, the primitives, the cosines between its layers;
of looped models with other numbers of loops too, and of some runs along their training.

Every part is written down beside the run as soon as it is measured, so that a killed command resumes after it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from loopt.errors import InputError
from loopt.files import explain_os_errors, read_json, write_atomically
from loopt.model import Layer, LoopedTransformer
from loopt.reproduce.language_settings import SETTINGS, Setting
from loopt.reproduce.measurement import Measurement, is_curve, is_number
from loopt.reproduce.primitives import PRIMITIVES, score_primitive
from loopt.runs import Run, TrainConfig, checkpoint, codec
from loopt.scoring import perplexity
from loopt.scoring.perplexity import text_fit
from loopt.similarity import cosine_matrix, layer_groups
from loopt.source import Split
from loopt.text.order import sequence_at
from loopt.text.source import Text

if TYPE_CHECKING:
    from loopt.reproduce.experiment import Job

FRACTIONS = (0.3, 0.5, 0.7, 0.85, 1.0)
"""Of training, at which checkpoints are measured; the paper's are every 20,000 steps from 120,000 of 400,000 on."""
LARGEST_LOSS = 700.0
POSITIONS_AT_ONCE = 2**20

Numbers = dict[str, float]
Part = Callable[[], dict[str, Numbers]]
"""Measures something: metrics, and the standard errors of some of them."""


@dataclass(frozen=True)
class LanguageMeasurement(Measurement):
    """Measures language models."""

    along_training: Collection[str] = ()
    """Names of the rows that are measured at FRACTIONS of their training too."""

    @property
    def curve(self) -> str:
        return "validation_perplexity"

    def measure(self, job: Job, run: Run, device: torch.device) -> Generator[None, None, dict[str, Any]]:
        setting, source = SETTINGS[job.scale], run.config.source
        assert isinstance(source, Text)
        found = _Measured(run)
        best = _Model(run, device, run.find("best").step)
        parts = _parts(best, setting, setting.primitives)
        whole = yield from found.all("best", parts)
        fields: dict[str, Any] = {**whole, "mixture": list(source.tokens.index.recipe.tasks)}
        fields["tokens"] = tokens_in_order(run.config)
        fields["cosines"] = best.cosines()
        plan = run.config.model.plan
        if plan.depth > plan.distinct_layers:
            by_loops = {}
            for loops in setting.loops:
                parts = _parts(best, setting, setting.fewer, loops)
                by_loops[str(loops)] = (yield from found.all(f"{loops} loops", parts))["metrics"]
            fields["by_loops"] = by_loops
        kept = self._kept(job)
        if kept:
            by_checkpoint = {}
            for fraction, step in kept.items():
                parts = _parts(_Model(run, device, step), setting, setting.fewer)
                by_checkpoint[str(fraction)] = (yield from found.all(f"step {step}", parts))["metrics"]
            fields["by_checkpoint"] = by_checkpoint
        return fields

    def steps_to_keep(self, job: Job) -> tuple[int, ...]:
        return tuple(self._kept(job).values())

    def _kept(self, job: Job) -> dict[float, int]:
        steps = SETTINGS[job.scale].steps
        kept = {fraction: max(1, round(fraction * steps)) for fraction in FRACTIONS}
        return kept if job.row.name in self.along_training else {}

    def after_writing(self, run: Run) -> None:
        """Removes all checkpoints but the one that was measured: they take gigabytes each."""
        best = run.find("best").step
        with explain_os_errors(f"delete checkpoints in {run.checkpoints}"):
            for step in checkpoint.steps_in(run.checkpoints):
                if step != best:
                    checkpoint.remove(run.checkpoints, step)

    def without_places(self, config: TrainConfig) -> TrainConfig:
        assert isinstance(config.source, Text)
        return replace(config, source=replace(config.source, data=""))

    def values(self, found: Mapping[str, Any]) -> Numbers:
        metrics: Numbers = found["metrics"]
        return metrics

    def shown(self, result: Mapping[str, Any]) -> str:
        return f"perplexity {result['perplexity']:.2f}"

    def tokens(self, found: Mapping[str, Any]) -> str:
        return str(found["tokens"])

    def is_current(self, config: TrainConfig, found: Mapping[str, Any]) -> bool:
        """Tells it by the file alone: the tokens, and what follows from them, are the file's own."""
        made = codec.from_json(found["config"])
        sizes = {"vocab_size": made.model.vocab_size, "max_len": made.model.max_len}
        given = {name: getattr(config.model, name) or size for name, size in sizes.items()}
        expected = replace(config, source=made.source, model=replace(config.model, **given))
        return not codec.differences(expected, made)

    def wrong_measured(self, found: Mapping[str, Any], tests: Collection[str]) -> Iterator[str]:
        if not is_number(found["result"].get("perplexity"), 1):
            yield "perplexity"
        if not isinstance(found.get("tokens"), str):
            yield "tokens"
        if not is_curve(found.get("curve"), math.exp(LARGEST_LOSS)):
            yield "curve"
        if not (_are_numbers(found.get("metrics")) and "perplexity" in found["metrics"]):
            yield "metrics"
        if not _are_numbers(found.get("standard_errors")):
            yield "standard_errors"
        for name in ("by_loops", "by_checkpoint"):
            by = found.get(name, {})
            if not (isinstance(by, dict) and all(map(_are_numbers, by.values()))):
                yield name
        try:
            codec.from_json(found.get("config"))
        except InputError:
            yield "config"


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_number, value.values()))


class _Model:
    """A model of a run, loaded when it is first needed."""

    def __init__(self, run: Run, device: torch.device, step: int) -> None:
        self.run, self.device, self.step = run, device, step
        self._loaded: LoopedTransformer | None = None

    def load(self) -> LoopedTransformer:
        if self._loaded is None:
            self._loaded = self.run.load_model(self.step).to(self.device)
        return self._loaded

    def cosines(self) -> dict[str, list[list[float]]]:
        """Returns the cosine of every layer with every layer by parameter group; nothing where there is one layer."""
        layers = [layer_groups(layer) for layer in self.load().loop.layers if isinstance(layer, Layer)]
        return {
            group: [[round(cosine, 4) for cosine in row] for row in matrix.tolist()]
            for group, matrix in cosine_matrix(layers).items()
        }


class _Measured:
    """What was measured of a run so far, in a file of its directory, part by part."""

    def __init__(self, run: Run) -> None:
        self.path: Path = run.directory / "measured.json"
        self._key = hashlib.sha256(json.dumps(run.read_result(), sort_keys=True).encode()).hexdigest()
        stored = read_json(self.path) if self.path.exists() else {}
        valid = isinstance(stored, dict) and stored.get("of") == self._key
        self._parts: dict[str, dict[str, Numbers]] = stored["parts"] if valid else {}

    def all(self, what: str, parts: Mapping[str, Part]) -> Generator[None, None, dict[str, Numbers]]:
        """Measures the parts that are missing, and returns the numbers of all."""
        for name, measure in parts.items():
            key = f"{what}: {name}"
            if key not in self._parts:
                self._parts[key] = measure()
                with explain_os_errors(f"write {self.path}"):
                    write_atomically(self.path, json.dumps({"of": self._key, "parts": self._parts}))
                yield
        found = [self._parts[f"{what}: {name}"] for name in parts]
        whole: dict[str, Numbers] = {"metrics": {}, "standard_errors": {}}
        for part in found:
            for kind, numbers in part.items():
                whole[kind] |= numbers
        return _with_means(whole)


def _parts(model: _Model, setting: Setting, examples: int, loops: int | None = None) -> dict[str, Part]:
    """Returns what to measure of a model, by name."""
    parts: dict[str, Part] = {"text": lambda: _text(model, loops)}
    for name in PRIMITIVES:
        parts[f"{name}, {examples}"] = lambda name=name: _primitive(model, name, examples, loops)  # type: ignore[misc]
    return parts


def _text(model: _Model, loops: int | None) -> dict[str, Numbers]:
    config, metrics = model.run.config, {}
    assert isinstance(config.source, Text)
    splits: dict[Split, tuple[str, int]] = {
        "test": ("", config.test_examples),
        "validation": ("validation_", config.eval_examples),
    }
    for split, (prefix, sequences) in splits.items():
        fit = text_fit(model.load(), config.source.tokens, split, sequences, loops)
        metrics[f"{prefix}perplexity"] = perplexity(fit.loss)
        metrics[f"{prefix}log_perplexity"] = fit.loss
        metrics[f"{prefix}token_accuracy"] = 100 * fit.accuracy
    return {"metrics": metrics, "standard_errors": {}}


def _primitive(model: _Model, name: str, examples: int, loops: int | None) -> dict[str, Numbers]:
    score = score_primitive(model.load(), model.run.codec, name, examples, loops)
    return {"metrics": score.metrics(name), "standard_errors": score.standard_errors(name)}


def _with_means(whole: dict[str, Numbers]) -> dict[str, Numbers]:
    """Adds the mean over the primitives, the group that Tables 3 and 4 have."""
    for ending in ("", "/choice", "/bits_per_byte"):
        names = [f"{name}{ending}" for name in PRIMITIVES]
        whole["metrics"][f"primitives{ending}"] = fmean(whole["metrics"][name] for name in names)
        errors = [whole["standard_errors"][name] for name in names]
        whole["standard_errors"][f"primitives{ending}"] = math.hypot(*errors) / len(errors)
    return whole


def tokens_in_order(config: TrainConfig) -> str:
    """Returns a hash of what a run trained on: the fingerprint of its tokens, and every sequence in its order. Where it
    is equal, two runs saw equal tokens in equal order."""
    assert isinstance(config.source, Text)
    data, length = config.source.tokens, config.model.max_len
    sequences, positions = data.sequences("train", length), config.steps * config.batch_size
    found = hashlib.sha256(f"{data.fingerprint} {length} {config.batch_size}".encode())
    for first in range(0, positions, POSITIONS_AT_ONCE):
        some = range(first, min(first + POSITIONS_AT_ONCE, positions))
        found.update(sequence_at(some, sequences, data.fingerprint, config.seed).numpy().astype("<i8").tobytes())
    return found.hexdigest()
