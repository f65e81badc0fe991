"""Where metrics go besides metrics.jsonl: TensorBoard or Weights & Biases, when installed and asked for."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from loopt.errors import InputError
from loopt.training.callbacks import Callback

if TYPE_CHECKING:
    from loopt.training.learner import Evaluation
    from loopt.training.trainer import Trainer

TrackerName = Literal["tensorboard", "wandb"]


class Tracker(Callback):
    """Sends what is logged and evaluated somewhere else."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends the values of a step."""

    def logged(self, trainer: Trainer, values: Mapping[str, float]) -> None:
        self.log(trainer.step, values)

    def evaluated(self, trainer: Trainer, evaluation: Evaluation) -> None:
        self.log(trainer.step, evaluation.values)


class TensorBoard(Tracker):
    def __init__(self, directory: Path, config: Mapping[str, Any], step: int) -> None:
        writer = _import("torch.utils.tensorboard", "tensorboard").SummaryWriter
        # What a killed session logged after its last checkpoint will be logged again: hide it.
        self.writer = writer(str(directory / "tensorboard"), purge_step=step + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def closed(self, trainer: Trainer) -> None:
        self.writer.close()


class WeightsAndBiases(Tracker):
    def __init__(self, directory: Path, config: Mapping[str, Any], step: int) -> None:
        wandb = _import("wandb", "wandb")
        identity = "".join(c if c.isalnum() else "-" for c in str(directory.resolve()))[-120:]
        self.run = wandb.init(project="loopt", name=directory.name, id=identity, resume="allow", config=dict(config))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def closed(self, trainer: Trainer) -> None:
        self.run.finish()


def open_trackers(names: Sequence[TrackerName], directory: Path, config: Mapping[str, Any], step: int) -> list[Tracker]:
    """Returns the trackers of these names, for a run that is at ``step``."""
    kinds: dict[TrackerName, type[TensorBoard] | type[WeightsAndBiases]] = {
        "tensorboard": TensorBoard,
        "wandb": WeightsAndBiases,
    }
    for name in names:
        if name not in kinds:
            raise InputError(f"log={name}: allowed is {' | '.join(kinds)}")
    return [kinds[name](directory, config, step) for name in names]


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f"log={package}: not installed; pip install {package}, or leave it out") from None
