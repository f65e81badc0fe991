"""What happens in a training run, for those who want to hear of it: progress, trackers, stacking, or a user's own.

>>> class Losses(Callback):
...     def logged(self, trainer, values):
...         print(trainer.step, values["loss"])

``train(config, run, callbacks=[Losses()])`` then prints the loss at every ``log_every`` steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loopt.plan import LoopPlan
    from loopt.training.learner import Evaluation
    from loopt.training.trainer import Trainer


class Callback:
    """Listens to a run: override any of its methods. ``trainer`` has the step, the run, its config and
    the learner with the model. With several ranks only the first one calls."""

    def begun(self, trainer: Trainer) -> None:
        """Is called before the first step of this process."""

    def stepping(self, trainer: Trainer) -> None:
        """Is called before every step."""

    def stepped(self, trainer: Trainer) -> None:
        """Is called after every step that training does not stop at."""

    def logged(self, trainer: Trainer, values: Mapping[str, float]) -> None:
        """Is called every ``log_every`` steps with loss, gradient norm, learning rate and throughput."""

    def evaluated(self, trainer: Trainer, evaluation: Evaluation) -> None:
        """Is called every ``eval_every`` steps with what validation found."""

    def saved(self, trainer: Trainer) -> None:
        """Is called when a checkpoint is on the disk."""

    def grown(self, trainer: Trainer, plan: LoopPlan) -> None:
        """Is called when stacking has grown the model."""

    def finished(self, trainer: Trainer) -> None:
        """Is called when all steps are done, or the target is reached, before the test."""

    def closed(self, trainer: Trainer) -> None:
        """Is called last, however training ended."""
