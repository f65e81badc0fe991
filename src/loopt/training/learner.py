"""The learner: takes training steps, and measures the model. There is one kind for each kind of source.

A step is all tensors: the indices of the examples, the learning rate and whether something went wrong are computed
where the model is. So it can be captured whole in a CUDA graph, and the host waits for it only when it wants to know.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loopt.kernels.graphs import captured
from loopt.model import LoopedTransformer
from loopt.runs import TrainConfig
from loopt.training.optim import build_optimizers, learning_rate
from loopt.training.parallel import Ranks
from loopt.training.regularizer import add_regularizer_gradient
from loopt.training.session import Session
from loopt.training.update import update

WARM_UP = 3
"""Steps to run as usual before a CUDA graph is captured: compilation and optimizer state have to come first."""


class NonFiniteError(ArithmeticError):
    """The loss or its gradient is not a number; that update, and any after it, was not applied."""

    def __init__(self, step: int, loss: float, grad_norm: float) -> None:
        super().__init__(f"loss {loss}, gradient norm {grad_norm}; the update was not applied")
        self.step = step


@dataclass(frozen=True)
class StepReport:
    loss: float
    grad_norm: float
    lr: float


@dataclass(frozen=True)
class Evaluation:
    """What validation found."""

    score: float
    """Chooses the best checkpoint: the higher, the better."""
    values: dict[str, float]
    """What metrics.jsonl says about it."""
    shown: str
    """What a person sees."""


class Learner(ABC):
    """Trains a model on one batch after the other. ``steps_done`` counts them, from the beginning of the run."""

    def __init__(
        self, config: TrainConfig, model: LoopedTransformer, steps_done: int, session: Session, ranks: Ranks
    ) -> None:
        self.config, self.model, self.session, self.ranks = config, model, session, ranks
        self.device = device = model.token_embedding.weight.device
        self.compiled = session.compiles_on(device)
        captured = self.set_up()
        self.optimizers = build_optimizers(config.optim, model, self.compiled)  # of the weights once they are sharded
        self.steps_done = steps_done
        self.step_on_device = torch.tensor([steps_done], device=device)  # [1]: the same, where a graph can see it
        self.lr = torch.zeros((), device=device)
        self.failed_at = torch.tensor([-1], device=device)  # [1]: the first step that was not finite
        self.figures = torch.zeros(3, device=device)  # [3]: loss, gradient norm, learning rate
        self.cosines: dict[str, Tensor] = {}  # with a regularizer, of blocks, by parameter group
        self.calls: Counter[int | None] = Counter()
        self.graphs: dict[int | None, torch.cuda.CUDAGraph] = {}  # every number of loops has one of its own
        self.stream: torch.cuda.Stream | None = None  # of its own, so that several runs can share a device
        if captured:
            self.stream = torch.cuda.Stream(device)
            self.wait_for_writes()

    @abstractmethod
    def set_up(self) -> bool:
        """Compiles and shards the model, and returns whether a step can be captured whole in a CUDA graph."""

    @staticmethod
    @abstractmethod
    def check(config: TrainConfig, session: Session, ranks: Ranks) -> None:
        """Raises an InputError where this session cannot train the config."""

    @abstractmethod
    def accumulate_gradient(self, loops: int | None) -> Tensor:
        """Accumulates the gradient of the next batch's loss in the parameters, and returns the loss."""

    @abstractmethod
    def validate(self) -> Evaluation:
        """Measures the model on validation examples."""

    @abstractmethod
    def test(self) -> dict[str, Any]:
        """Measures the model on test examples, and returns the figures for result.json."""

    @abstractmethod
    def throughput(self, steps: int, seconds: float) -> dict[str, float]:
        """Returns throughput figures for the last ``steps`` steps, which took ``seconds``."""

    def solved(self, score: float) -> bool:
        """Tells whether a validation score is all that was asked for."""
        return False

    def load_batch(self) -> None:  # noqa: B027 (a task makes its examples on the device)
        """Copies the next batch to the device before the step runs."""

    def wait_for_writes(self) -> None:
        """Has the next step wait until what was written to weights and optimizer state outside of steps is there."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def train_step(self) -> None:
        """Starts the next step; on an accelerator it is only queued, and ``report`` waits for it."""
        loops = self.loops_at(self.steps_done)
        if self.stream is None:
            self._load_inputs()
            self._run(loops)
        else:
            self._launch(loops, self.stream)
        self.steps_done += 1

    def loops_at(self, step: int) -> int | None:
        """Returns the loops of a step; None: as many as the plan has."""
        counts = self.config.loop_counts
        return counts.count_at(step, self.config.seed) if counts.active else None

    def synchronize(self) -> None:
        """Waits until all steps that were started are over."""
        if self.stream is not None:
            self.stream.synchronize()

    def report(self) -> StepReport:
        """Waits for the last step and returns how it went; NonFiniteError where one since the last report failed."""
        self.synchronize()
        failed_at = int(self.failed_at)
        loss, grad_norm, lr = self.figures.tolist()
        if failed_at >= 0:
            raise NonFiniteError(failed_at + 1, loss, grad_norm)
        return StepReport(loss, grad_norm, lr)

    def _load_inputs(self) -> None:
        optim = self.config.optim
        self.lr.fill_(learning_rate(self.steps_done, self.config.steps, optim.lr, optim.warmup_steps))
        self.load_batch()

    def _launch(self, loops: int | None, stream: torch.cuda.Stream) -> None:
        self.calls[loops] += 1
        if loops not in self.graphs and self.calls[loops] > WARM_UP:
            with captured(stream) as graph:
                self._run(loops)
            self.graphs[loops] = graph
        with torch.cuda.stream(stream):
            self._load_inputs()
            if loops in self.graphs:
                self.graphs[loops].replay()
            else:
                self._run(loops)

    def _run(self, loops: int | None) -> None:
        """Runs a whole step; every line of it is tensors on the device."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        lr = self.lr * (self.failed_at[0] < 0)  # zero from a failure on
        loss = self.accumulate_gradient(loops)
        if self.config.regularizer.active:
            self.cosines = add_regularizer_gradient(self.model, self.config.regularizer, self.compiled)
        parameters, clip_norm = self.model.parameters(), self.config.optim.clip_norm
        grad_norm, finite = update(parameters, self.optimizers, loss, lr, clip_norm, self.compiled)
        figures = torch.stack((loss, grad_norm, lr))
        self.figures.copy_(torch.where(self.failed_at < 0, figures, self.figures))  # of the failed step, not after it
        self.failed_at.copy_(torch.where(finite | (self.failed_at >= 0), self.failed_at, self.step_on_device))
        self.step_on_device += 1
