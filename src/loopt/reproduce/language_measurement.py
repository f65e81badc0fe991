"""How a language model of a table is measured: the best checkpoint; a looped one with other numbers of loops; one with
a regularizer also as if it were looped; some along their training; and the cosines between the layers. Other loops and
other checkpoints are measured of seed 0 alone, which is the one that figures show.

Every part is written down beside the run as soon as it is measured, so that a killed command resumes after it."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from loopt.errors import InputError
from loopt.evaluation.catalogue import TASKS
from loopt.files import explain_os_errors, read_json, write_atomically
from loopt.model import Layer, LoopedTransformer
from loopt.reproduce.language_scores import PREDICTIONS, Found, Measured, Numbers, Part, Questions, Trained, together
from loopt.reproduce.language_settings import SETTINGS, Setting
from loopt.reproduce.measurement import Measurement, is_curve, is_number
from loopt.runs import Run, TrainConfig, checkpoint, codec
from loopt.similarity import cosine_matrix, layer_groups
from loopt.text.order import sequence_at
from loopt.text.source import Text

if TYPE_CHECKING:
    from loopt.reproduce.experiment import Job

SEED_OF_FIGURES = 0
LARGEST_PERPLEXITY = math.exp(700.0)
POSITIONS_AT_ONCE = 2**20


@dataclass(frozen=True)
class LanguageMeasurement(Measurement):
    """Measures language models."""

    along_training: Collection[str] = ()
    """Names of the rows that are measured at some fractions of their training too."""
    data_dir: Path | None = None
    """Where the data of the 15 tasks are; without it there are the primitives alone."""
    invented: bool = False
    """Whether those are the invented mini-sets, which show that all works, and measure nothing."""

    @property
    def curve(self) -> str:
        return "validation_perplexity"

    def measure(self, job: Job, run: Run, device: torch.device) -> Generator[str, None, dict[str, Any]]:
        setting, plan, pull = SETTINGS[job.scale], run.config.model.plan, run.config.regularizer
        assert isinstance(run.config.source, Text)
        questions = self.questions(setting)
        fewer, store, best = questions.first(setting.fewer), _Store(run, device), run.find("best").step

        def measured(name: str, model: Measured) -> Generator[str, None, Numbers]:
            return (yield from store.all(name, model.parts(fewer)))["metrics"]

        trained = Trained(run, device, best)
        fields: dict[str, Any] = yield from store.all("best", Measured(trained).parts(questions, kept=True))
        fields["tokens"] = tokens_in_order(run.config)
        fields["mixture"] = list(run.config.source.tokens.index.recipe.tasks)
        fields["questions"] = questions.hashes()
        fields["invented"] = self.invented
        fields["cosines"] = cosines_of(trained.model)
        if plan.depth > plan.distinct_layers and job.seed == SEED_OF_FIGURES:
            fields["by_loops"] = {}
            own = plan.blocks[plan.loopable].loops if plan.loopable is not None else 1
            for loops in sorted({*setting.loops, own}):
                found = yield from measured(f"{loops} loops", Measured(trained, loops))
                fields["by_loops"][str(loops)] = found
        if pull.active:
            fields["as_looped"] = yield from measured("as looped", Measured(Trained(run, device, best, pull.block)))
        if kept := self._kept(job):
            fields["by_checkpoint"] = {}
            for fraction, step in kept.items():
                found = yield from measured(f"step {step}", Measured(Trained(run, device, step)))
                fields["by_checkpoint"][str(fraction)] = found
        fields["measuring_seconds"] = store.seconds
        return fields

    def questions(self, setting: Setting) -> Questions:
        """Returns the questions of all tasks; raises an InputError where the data of one are not there."""
        return Questions.load(self.data_dir, setting.primitives, setting.limit)

    def steps_to_keep(self, job: Job) -> tuple[int, ...]:
        return tuple(self._kept(job).values())

    def _kept(self, job: Job) -> dict[float, int]:
        """Returns the step of each fraction of training, for runs that are measured along it."""
        setting = SETTINGS[job.scale]
        kept = {fraction: max(1, round(fraction * setting.steps)) for fraction in setting.fractions}
        return kept if job.row.name in self.along_training and job.seed == SEED_OF_FIGURES else {}

    def after_writing(self, run: Run, result: Path, keep: Collection[int]) -> None:
        """Keeps the predictions, and of the checkpoints, gigabytes each, the best one and those to ``keep``. All stay
        as long as the 15 tasks may still be measured on them."""
        with explain_os_errors(f"write {result.with_suffix('')}"):
            shutil.copytree(run.directory / PREDICTIONS, result.with_suffix(""), dirs_exist_ok=True)
        if self.data_dir is None or self.invented:
            return
        best = run.find("best").step
        with explain_os_errors(f"delete checkpoints in {run.checkpoints}"):
            for step in checkpoint.steps_in(run.checkpoints):
                if step != best and step not in keep:
                    checkpoint.remove(run.checkpoints, step)

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
        sizes = config.model.vocab_size or made.model.vocab_size, config.model.max_len or made.model.max_len
        model = replace(config.model, vocab_size=sizes[0], max_len=sizes[1])
        return not codec.differences(replace(config, source=made.source, model=model), made)

    def is_complete(self, found: Mapping[str, Any]) -> bool:
        """Tells it by the tasks: a row may have been measured without the data of the 15, or on invented ones."""
        if self.data_dir is None or self.invented:
            return True
        return not found["invented"] and set(TASKS) <= set(found["questions"])

    def wrong_measured(self, found: Mapping[str, Any], tests: Collection[str]) -> Iterator[str]:
        if not is_number(found["result"].get("perplexity"), 1):
            yield "perplexity"
        if not isinstance(found.get("tokens"), str):
            yield "tokens"
        if not is_curve(found.get("curve"), LARGEST_PERPLEXITY):
            yield "curve"
        if not (_are_numbers(found.get("metrics")) and "perplexity" in found["metrics"]):
            yield "metrics"
        if not _are_numbers(found.get("standard_errors")):
            yield "standard_errors"
        losses = found.get("text_losses", {})
        lists = losses.values() if isinstance(losses, dict) else [None]
        if not all(isinstance(of_each, list) and all(map(is_number, of_each)) for of_each in lists):
            yield "text_losses"
        for name, kind in (("mixture", list), ("questions", dict), ("invented", bool), ("cosines", dict)):
            if not isinstance(found.get(name), kind):
                yield name
        if not _are_numbers(found.get("as_looped", {})):
            yield "as_looped"
        if not is_number(found.get("measuring_seconds", 0.0), 0):
            yield "measuring_seconds"
        for name in ("by_loops", "by_checkpoint"):
            if not (isinstance(by := found.get(name, {}), dict) and all(map(_are_numbers, by.values()))):
                yield name
        try:
            codec.from_json(found.get("config"))
        except InputError:
            yield "config"


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_number, value.values()))


class _Store:
    """What was measured of a run so far, in a file of its directory, part by part."""

    def __init__(self, run: Run, device: torch.device) -> None:
        self.path: Path = run.directory / "measured.json"
        self._run, self._device = run, device

    @cached_property
    def _key(self) -> str:
        """Returns a hash of the finished run and the kind of device: what others left here does not count."""
        measured = [self._run.read_result(), self._device.type]
        return hashlib.sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest()

    @cached_property
    def _parts(self) -> dict[str, Found]:
        stored = read_json(self.path) if self.path.exists() else {}
        valid = isinstance(stored, dict) and stored.get("of") == self._key
        return dict(stored["parts"]) if valid else {}

    def all(self, what: str, parts: Mapping[str, Part]) -> Generator[str, None, dict[str, Any]]:
        """Measures the parts that are missing, and returns the metrics of all."""
        for name, measure in parts.items():
            key = f"{what}: {name}"
            if key not in self._parts:
                began = time.monotonic()
                self._parts[key] = {**measure(), "seconds": round(time.monotonic() - began, 3)}
                with explain_os_errors(f"write {self.path}"):
                    write_atomically(self.path, json.dumps({"of": self._key, "parts": self._parts}))
                yield key
        return {**together([self._parts[f"{what}: {name}"] for name in parts])}

    @property
    def seconds(self) -> float:
        """Returns how long all parts took that were measured so far, in earlier sessions, too."""
        return round(sum(part["seconds"] for part in self._parts.values()), 1)


def cosines_of(model: LoopedTransformer) -> dict[str, list[list[float]]]:
    """Returns the cosine of every layer with every layer, by parameter group (Figures 5 and 6)."""
    layers = [layer_groups(layer) for layer in model.loop.layers if isinstance(layer, Layer)]
    return {
        group: [[round(cosine, 4) for cosine in row] for row in matrix.tolist()]
        for group, matrix in cosine_matrix(layers).items()
    }


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
