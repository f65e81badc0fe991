"""Training on a task: its examples are made where the model is, and have right answers to be measured by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from loopt.evaluation import mean_score, score_each
from loopt.kernels import speed_up
from loopt.model import LoopedTransformer
from loopt.random_bits import Stream, TensorStream
from loopt.runs import TrainConfig
from loopt.tasks import IGNORE, Batch, Task
from loopt.training.optim import build_optimizers
from loopt.training.step import Step
from loopt.training.work import Evaluation

EVALUATION_TOKENS = 2**18

Head = Callable[[LoopedTransformer, Tensor, Tensor, Tensor], Tensor]


def weighted_loss(model: LoopedTransformer, x: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy of what the model reads out of x [..., D] at targets [...], summed with these weights [...]."""
    losses = F.cross_entropy(model.readout(x).float().flatten(0, -2), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum()


def backward(
    model: LoopedTransformer,
    batches: Sequence[Batch],
    answer_weight: float = 0.0,
    loops: int | None = None,
    head: Head = weighted_loss,
) -> Tensor:
    """Leave the gradient of the loss over all batches; that loss: the mean over the supervised positions, and with
    ``answer_weight`` as much of the mean over the answers. ``head`` may be ``weighted_loss`` compiled.

    Batches differ in length; they run end to end, so that nothing is padded and most kernels run once for all."""
    targets, answers = (torch.cat([getattr(one, name).flatten() for one in batches]) for name in ("targets", "answers"))
    supervised, asked = targets != IGNORE, answers != IGNORE  # [N]
    weights = supervised * ((1 - answer_weight) / supervised.sum()) + asked * (answer_weight / asked.sum())
    parts = tuple((one.tokens.shape[0], one.tokens.shape[1]) for one in batches)
    with torch.autocast("cuda", torch.bfloat16, enabled=targets.is_cuda):
        x = torch.cat([model.embed(one.tokens).flatten(0, 1) for one in batches])  # [N, D]
        loss = head(model, model.iterate(x, loops, parts=parts), targets, weights)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def shares(batch_size: int, parts: int) -> list[int]:
    """How many examples of a batch each part of a mixture gets: as equal as can be.

    >>> shares(1024, 5)
    [205, 205, 205, 205, 204]
    """
    return [batch_size // parts + (part < batch_size % parts) for part in range(parts)]


class TaskStep(Step):
    """Trains on a task, whose examples it makes."""

    def __init__(
        self,
        config: TrainConfig,
        model: LoopedTransformer,
        done: int = 0,
        compiled: bool = False,
        captured: bool = False,
    ) -> None:
        if compiled:
            speed_up(model)
        super().__init__(config, model, build_optimizers(model, config.optim, compiled), done, compiled, captured)
        self.parts = config.task.parts
        self.shares = shares(config.batch_size, len(self.parts))
        # One compilation for every part: taken for variables, their settings would not compile.
        draw = torch.compile(_draw, dynamic=False) if compiled else _draw
        self.draw: Callable[[Task, Tensor, Stream], Batch] = draw
        self.streams = [self._stream(part) for part in self.parts]
        self.head: Head = torch.compile(weighted_loss) if compiled else weighted_loss

    def gradient(self, loops: int | None) -> Tensor:
        parts = zip(self.parts, self.shares, self.streams, strict=True)
        batches = [self._batch(part, count, stream) for part, count, stream in parts]
        return backward(self.model, batches, self.config.answer_weight, loops, self.head)

    def _stream(self, part: Task) -> TensorStream:
        one = torch.zeros(1, dtype=torch.int64, device=self.device)
        stream = Stream(part.name, self.config.seed, "train")
        return TensorStream.like(stream, lambda watched: part.draw(one, watched), self.device)

    def _batch(self, part: Task, count: int, stream: Stream) -> Batch:
        indices = self.done * count + torch.arange(count, device=self.device)  # [count]
        if self.config.train_examples is not None:
            indices = indices % max(1, self.config.train_examples // len(self.shares))
        return self.draw(part, indices, stream)


def _draw(part: Task, indices: Tensor, stream: Stream) -> Batch:
    return part.draw(indices, stream)


class TaskWork:
    """A task whose examples have right answers."""

    def __init__(self, step: TaskStep) -> None:
        self.step, self.config, self.model = step, step.config, step.model

    def validate(self) -> Evaluation:
        scores = score_each(
            self.model, self.config.task.tests, "validation", self.config.eval_examples, self._evaluation_batch()
        )
        score = mean_score(scores)
        values = {"validation_accuracy": score.accuracy, "validation_loss": score.loss}
        if len(scores) > 1:
            values |= {f"validation_accuracy {name}": one.accuracy for name, one in scores.items()}
        return Evaluation(score.accuracy, values, f"accuracy {score.accuracy:.1%}")

    def test(self) -> dict[str, Any]:
        config = self.config
        scores = score_each(self.model, config.task.tests, "test", config.test_examples, self._evaluation_batch())
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
        return batch if self.step.device.type == "cpu" else max(batch, EVALUATION_TOKENS // length)
