"""What a run trains on: steps to take, and how the model is measured on the way and at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from loopt.evaluation import mean_score, score_tests
from loopt.kernels import speed_up
from loopt.model import LoopedTransformer
from loopt.runs import TrainConfig
from loopt.training.optim import build_optimizers
from loopt.training.step import Step, TaskStep

EVALUATION_TOKENS = 2**18


@dataclass(frozen=True)
class Evaluation:
    score: float
    """By which the best checkpoint is chosen: the higher, the better."""
    values: dict[str, float]
    """What metrics.jsonl says about it."""
    shown: str
    """What a person sees."""


class Work(Protocol):
    @property
    def step(self) -> Step:
        """What trains."""

    def validate(self) -> Evaluation:
        """How the model does now on examples it is not trained on."""

    def test(self) -> dict[str, Any]:
        """The final figures, for result.json."""

    def speed(self, steps: int, seconds: float) -> dict[str, float]:
        """Of so many steps that took so long."""


class TaskWork:
    """A task whose examples have right answers."""

    def __init__(
        self,
        config: TrainConfig,
        model: LoopedTransformer,
        done: int,
        compiled: bool,
    ) -> None:
        self.config, self.model = config, model
        self.device = model.token_embedding.weight.device
        if compiled:
            speed_up(model)
        optimizers = build_optimizers(model, config.optim, compiled)
        self.step: Step = TaskStep(config, model, optimizers, done, compiled, captured=self.device.type == "cuda")

    def validate(self) -> Evaluation:
        scores = score_tests(
            self.model, self.config.task, "validation", self.config.eval_examples, self._evaluation_batch()
        )
        score = mean_score(scores)
        values = {"validation_accuracy": score.accuracy, "validation_loss": score.loss}
        if len(scores) > 1:
            values |= {f"validation_accuracy {name}": one.accuracy for name, one in scores.items()}
        return Evaluation(score.accuracy, values, f"accuracy {score.accuracy:.1%}")

    def test(self) -> dict[str, Any]:
        config = self.config
        scores = score_tests(self.model, config.task, "test", config.test_examples, self._evaluation_batch())
        score = mean_score(scores)
        return {
            "accuracy": score.accuracy,
            "accuracies": {name: one.accuracy for name, one in scores.items()},
            "loss": score.loss,
            "test_examples": score.examples,
            "flops": config.model.flops(config.task.length),
        }

    def speed(self, steps: int, seconds: float) -> dict[str, float]:
        return {"examples_per_second": steps * self.config.batch_size / seconds}

    def _evaluation_batch(self) -> int:
        """A GPU wants more at a time than a training batch may have."""
        batch, length = self.config.batch_size, self.config.model.max_len
        return batch if self.device.type == "cpu" else max(batch, EVALUATION_TOKENS // length)
