"""One training step, whatever it trains on: the gradient of the next batch, clipped, and the update.

All of it is tensors: the indices of the examples, the learning rate and whether something went wrong are computed where
the model is. So the whole step can be captured in a CUDA graph, and the host waits for it only when it wants to know.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from loopt.kernels import has_triton
from loopt.model import LoopedTransformer
from loopt.runs import TrainConfig
from loopt.training.adafactor import Adafactor
from loopt.training.optim import learning_rate, set_lr
from loopt.training.parallel import whole
from loopt.training.regularizer import add_regularizer_gradient

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


class Step(ABC):
    """Trains on the next batch each time it is called; ``report`` tells how that went."""

    def __init__(
        self,
        config: TrainConfig,
        model: LoopedTransformer,
        optimizers: Sequence[Optimizer],
        done: int,
        compiled: bool,
        captured: bool,
    ) -> None:
        self.config, self.model, self.optimizers, self.compiled = config, model, optimizers, compiled
        self.device = device = model.token_embedding.weight.device
        optim, steps = config.optim, range(config.steps)
        rates = [learning_rate(step, config.steps, optim.lr, optim.warmup_steps) for step in steps]
        self.schedule = torch.tensor(rates, dtype=torch.float32, device=device)  # [steps]
        self.done = torch.tensor([done], device=device)  # [1]
        self.next = done  # the same number, where the host can see it
        self.failed_at = torch.tensor([-1], device=device)  # [1]: the first step that was not finite
        self.figures = torch.zeros(3, device=device)  # [3]: loss, gradient norm, learning rate
        self.cosines: dict[str, Tensor] = {}  # with a regularizer, of blocks, by parameter group
        self.calls: Counter[int | None] = Counter()
        self.graphs: dict[int | None, torch.cuda.CUDAGraph] = {}  # every number of loops has one of its own
        self.stream: torch.cuda.Stream | None = None  # of its own, so that several runs can share a device
        if captured:
            self.stream = torch.cuda.Stream(device)
            self.stream.wait_stream(torch.cuda.current_stream(device))

    @abstractmethod
    def gradient(self, loops: int | None) -> Tensor:
        """Leave the gradient of the next batch's loss in the parameters, whose gradients are none; that loss."""

    def feed(self) -> None:  # noqa: B027 (on a task everything does)
        """Put where ``gradient`` will find it what does not come about on the device."""

    def __call__(self) -> None:
        """Start the next step; on an accelerator it is only queued, and ``report`` waits for it."""
        loops = self.loops_at(self.next)
        if self.stream is None:
            self.feed()
            self.run(loops)
        else:
            self._launch(loops, self.stream)
        self.next += 1

    def loops_at(self, step: int) -> int | None:
        """Loops of this step; none: as many as the plan has."""
        counts = self.config.loop_counts
        return counts.count_at(step, self.config.seed) if counts.active else None

    def _launch(self, loops: int | None, stream: torch.cuda.Stream) -> None:
        self.calls[loops] += 1
        if loops not in self.graphs and self.calls[loops] > WARM_UP:
            self.graphs[loops] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[loops], stream=stream):
                self.run(loops)
        with torch.cuda.stream(stream):
            self.feed()
            if loops in self.graphs:
                self.graphs[loops].replay()
            else:
                self.run(loops)

    def run(self, loops: int | None) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        lr = self.schedule.gather(0, self.done)[0] * (self.failed_at[0] < 0)  # zero from a failure on
        loss = self.gradient(loops)
        if self.config.regularizer.active:
            self.cosines = add_regularizer_gradient(self.model, self.config.regularizer, self.compiled)
        parameters, clip_norm = self.model.parameters(), self.config.optim.clip_norm
        grad_norm, finite = update(parameters, self.optimizers, loss, lr, clip_norm, self.compiled)
        figures = torch.stack((loss, grad_norm, lr))
        self.figures.copy_(torch.where(self.failed_at < 0, figures, self.figures))  # of the failed step, not after it
        self.failed_at.copy_(torch.where(finite | (self.failed_at >= 0), self.failed_at, self.done))
        self.done += 1

    def report(self) -> StepReport:
        """Wait for the last step and tell how it went; NonFiniteError where one since the last report went wrong."""
        if self.stream is not None:
            self.stream.synchronize()
        failed_at = int(self.failed_at)
        loss, grad_norm, lr = self.figures.tolist()
        if failed_at >= 0:
            raise NonFiniteError(failed_at + 1, loss, grad_norm)
        return StepReport(loss, grad_norm, lr)


def update(
    parameters: Iterable[Tensor],
    optimizers: Sequence[Optimizer],
    loss: Tensor,
    lr: Tensor,
    clip_norm: float,
    compiled: bool = False,
) -> tuple[Tensor, Tensor]:
    """Take a step by the clipped gradient; the gradient's norm before that, and whether it and the loss are finite.
    Where they are not, nothing moves."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    grad_norm = whole(torch.nn.utils.get_total_norm(grads))
    finite = loss.isfinite() & grad_norm.isfinite()
    kept = torch.where(finite, (clip_norm / (grad_norm + 1e-6)).clamp(max=1.0), 0.0)
    set_lr(optimizers, lr * finite)
    for optimizer in optimizers:
        if isinstance(optimizer, Adafactor):
            optimizer.step(grad_factor=kept)  # clips as it reads, which saves writing all gradients
        else:
            _scale_or_zero(optimizer, kept, compiled)
            optimizer.step()
    return grad_norm, finite


def _scale_or_zero(optimizer: Optimizer, factor: Tensor, compiled: bool) -> None:
    """Multiply the gradients. By 0 all is zero, whatever it was: zero times not-a-number is not, and would move the
    weights at any learning rate."""
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    for grad in grads:
        grad = grad.to_local() if isinstance(grad, DTensor) else grad
        if compiled and has_triton() and grad.is_cuda and grad.is_contiguous():
            from loopt.kernels import clip

            clip.scale_or_zero(grad, factor)
        else:
            grad.mul_(factor).masked_fill_(factor == 0.0, 0.0)
