"""One training step: forward, backward, clip, update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from loopt.model import LoopedTransformer
from loopt.tasks import IGNORE, Batch
from loopt.training.optim import set_lr


class NonFiniteError(ArithmeticError):
    """The loss or its gradient is not a number; the update was not applied."""


@dataclass(frozen=True)
class StepReport:
    loss: float
    grad_norm: float


def loss_of(model: LoopedTransformer, batch: Batch) -> Tensor:
    """Mean cross-entropy over the supervised positions."""
    with torch.autocast("cuda", torch.bfloat16, enabled=batch.tokens.is_cuda):
        logits = model(batch.tokens)  # [B, T, V]
    return F.cross_entropy(logits.float().flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE)


def train_step(
    model: LoopedTransformer, optimizers: Sequence[Optimizer], batch: Batch, lr: float, clip_norm: float
) -> StepReport:
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss = loss_of(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    report = StepReport(*torch.stack((loss.detach(), grad_norm.to(loss.dtype))).tolist())
    if not torch.isfinite(torch.tensor((report.loss, report.grad_norm))).all():
        raise NonFiniteError(f"loss {report.loss}, gradient norm {report.grad_norm}")
    set_lr(optimizers, lr)
    for optimizer in optimizers:
        optimizer.step()
    return report
