"""Training on a task: its examples are made where the model is, and have right answers to be measured by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from loopt.errors import InputError, require
from loopt.kernels import compile_model
from loopt.model import LoopedTransformer
from loopt.random_bits import Stream, TensorStream
from loopt.runs import TrainConfig
from loopt.runs.loop_counts import LoopCounts
from loopt.scoring import mean_score, score_each
from loopt.scoring.precision import autocast
from loopt.tasks import IGNORE, Batch, Task, check_examples
from loopt.training.exit_gate import gate_loss, with_gradient_of
from loopt.training.learner import Evaluation, Learner
from loopt.training.parallel import Ranks
from loopt.training.session import Session

ReadoutLoss = Callable[[LoopedTransformer, Tensor, Tensor, Tensor], Tensor]
Sampler = Callable[[Task, Tensor, Stream], Batch]


def weighted_loss(model: LoopedTransformer, x: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Returns the cross-entropy of what the model reads out of x [N, D] at targets [N], summed with weights [N]."""
    losses = F.cross_entropy(model.readout(x).float(), targets, reduction="none")
    return (losses * weights).sum()


def backward(
    model: LoopedTransformer,
    batches: Sequence[Batch],
    answer_weight: float = 0.0,
    loops: int | None = None,
    readout_loss: ReadoutLoss = weighted_loss,
) -> Tensor:
    """Accumulates the gradient of the loss over all batches, and returns the loss: the mean over the supervised
    positions, and with ``answer_weight`` as much of the mean over the answers. ``readout_loss`` may be compiled.

    Batches differ in length; they are packed end to end, so that nothing is padded and most kernels run once for
    all."""
    targets, answers = (torch.cat([getattr(one, name).flatten() for one in batches]) for name in ("targets", "answers"))
    supervised, asked = targets != IGNORE, answers != IGNORE  # [N]
    weights = supervised * ((1 - answer_weight) / supervised.sum()) + asked * (answer_weight / asked.sum())
    context = model.context(tuple((one.tokens.shape[0], one.tokens.shape[1]) for one in batches))
    with autocast(targets.device):
        x = torch.cat([model.embed(one.tokens).flatten(0, 1) for one in batches])  # [N, D]
        record: list[Tensor] | None = [] if model.config.has_exit_gate else None
        loss = readout_loss(model, model.iterate(x, loops, context, record), targets, weights)
        if record is not None:
            loss = with_gradient_of(loss, gate_loss(model, record, loops, context, weights))
    loss.backward()
    return loss.detach()


def shares(batch_size: int, tasks: int) -> list[int]:
    """Returns how many examples of a batch each task of a mixture gets: as equal as can be.

    >>> shares(1024, 5)
    [205, 205, 205, 205, 204]
    """
    return [batch_size // tasks + (task < batch_size % tasks) for task in range(tasks)]


class TaskLearner(Learner):
    """Trains on a task, whose examples it makes."""

    def set_up(self) -> bool:
        if self.compiled:
            compile_model(self.model)
        assert isinstance(self.config.source, Task)
        self.task = self.config.source
        self.mixture = self.task.mixture
        self.shares = shares(self.config.batch_size, len(self.mixture))
        # One compilation for every task: taken for variables, their settings would not compile. Where each number of
        # loops has a task of its own, compiling all of them takes longer than it saves.
        compiled = self.compiled and not _sized_by_loops(self.config.loop_counts, self.task)
        self.draw: Sampler = torch.compile(_draw, dynamic=False) if compiled else _draw
        self.streams = [self._stream(task) for task in self.mixture]
        self.readout_loss: ReadoutLoss = torch.compile(weighted_loss) if self.compiled else weighted_loss
        return self.device.type == "cuda"

    @staticmethod
    def check(config: TrainConfig, session: Session, ranks: Ranks) -> None:
        assert isinstance(config.source, Task)
        check_examples(config.source)
        _check_loops(config, config.source)
        if ranks.distributed:
            raise InputError(f"{ranks.size} ranks: a task trains on one; language models train on several")
        if session.micro_batch is not None:
            raise InputError(
                f"micro_batch={session.micro_batch}: allowed for language models; a task's batch runs whole"
            )

    def accumulate_gradient(self, loops: int | None) -> Tensor:
        tasks = self.mixture if loops is None else [task.for_loops(loops) for task in self.mixture]
        mixture = zip(tasks, self.shares, self.streams, strict=True)
        batches = [self._batch(task, count, stream) for task, count, stream in mixture]
        run = None if self.config.loop_counts.problems_only else loops
        return backward(self.model, batches, self.task.answer_weight, run, self.readout_loss)

    def _stream(self, task: Task) -> TensorStream:
        one = torch.zeros(1, dtype=torch.int64, device=self.device)
        stream = Stream(task.name, self.config.seed, "train")
        return TensorStream.like(stream, lambda watched: task.draw(one, watched), self.device)

    def _batch(self, task: Task, count: int, stream: Stream) -> Batch:
        indices = self.step_on_device * count + torch.arange(count, device=self.device)  # [count]
        if self.task.train_examples is not None:
            indices = indices % max(1, self.task.train_examples // len(self.shares))
        return self.draw(task, indices, stream)

    def validate(self) -> Evaluation:
        scores = score_each(self.model, self.task.tests, "validation", self.config.eval_examples)
        score = mean_score(scores)
        values = {"validation_accuracy": score.accuracy, "validation_loss": score.loss}
        if len(scores) > 1:
            values |= {f"validation_accuracy {name}": one.accuracy for name, one in scores.items()}
        return Evaluation(score.accuracy, values, f"accuracy {score.accuracy:.1%}")

    def solved(self, score: float) -> bool:
        return self.task.target_accuracy is not None and score >= self.task.target_accuracy

    def test(self) -> dict[str, Any]:
        scores = score_each(self.model, self.task.tests, "test", self.config.test_examples)
        score = mean_score(scores)
        return {
            "accuracy": score.accuracy,
            "accuracies": {name: one.accuracy for name, one in scores.items()},
            "loss": score.loss,
            "test_examples": score.examples,
            "flops": self.config.model.flops(self.task.length),
        }

    def throughput(self, steps: int, seconds: float) -> dict[str, float]:
        return {"examples_per_second": steps * self.config.batch_size / seconds}


def _check_loops(config: TrainConfig, task: Task) -> None:
    """Raises an InputError for a task that is made for other loops than the plan has, or not for those of a step."""
    plan = config.model.plan
    if task.loops is not None and (plan.loopable is None or plan.blocks[plan.loopable].loops != task.loops):
        raise InputError(f"model.plan={plan}: allowed for this {task.name} are plans with {task.loops} loops")
    counts = config.loop_counts
    if counts.active:
        task.for_loops(counts.high)
    if (whole := task.loops_when_whole) is not None:
        most = counts.high if counts.active else 0
        allowed = f"{whole} or more, with which {task.name} trains on the problems it is measured on"
        require(most >= whole, "loop_counts.high", most, allowed)
    if counts.problems_only:
        asks = f"off for {task.name}, whose problems ask for a number of loops"
        require(task.loops is None, "loop_counts.problems_only", True, asks)
        sized = _sized_by_loops(counts, task)
        require(sized, "loop_counts.problems_only", True, "off for a task whose problems do not go by the loops")


def _sized_by_loops(counts: LoopCounts, task: Task) -> bool:
    """Tells whether steps with other numbers of loops have other problems."""
    return counts.active and task.for_loops(counts.low) != task.for_loops(counts.high)


def _draw(task: Task, indices: Tensor, stream: Stream) -> Batch:
    return task.draw(indices, stream)
