"""The exit gate's own loss: after each loop it is to tell whether the model's answer will stay what it is.

The label is whether the first choice after that loop is the first choice after the last one. The states that the gate
reads are taken as they are, so that its gradient reaches the gate alone, and the model trains as if it had none.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from loopt.attention import Context
from loopt.model import LoopedTransformer
from loopt.scoring.readout import first_choices


def gate_loss(
    model: LoopedTransformer,
    record: list[Tensor],
    loops: int | None,
    context: Context,
    weights: Tensor,
    every: int = 1,
) -> Tensor:
    """Returns the gate's mean cross-entropy over all loops but the last, and over positions by their weights [B, T] or
    [N]. ``record`` has the states after every pass, [B, T, D] or [N, D]. Only every so many positions are looked at:
    reading answers out after each loop takes time."""
    before, looped, after = model.plan_with(loops).around_loop()
    undecided = record[len(before) : len(before) + len(looped) - 1]
    weights = weights[..., ::every]
    with torch.no_grad():
        last = first_choices(model, record[-1][..., ::every, :])
        ends = [model.loop(state, after, context)[..., ::every, :] for state in undecided]
        stays = torch.stack([first_choices(model, end) == last for end in ends])  # [loops - 1, B, T / every]
        normed = torch.stack([model.final_norm(state[..., ::every, :]) for state in undecided])
    logits = model.exit_gate(normed).squeeze(-1).float()
    losses = F.binary_cross_entropy_with_logits(logits, stays.float(), reduction="none").mean(0)  # [B, T / every]
    return (losses * weights).sum() / weights.sum()


def with_gradient_of(loss: Tensor, other: Tensor) -> Tensor:
    """Returns ``loss`` as it is, with the gradient of both: what is logged stays the model's own loss."""
    return loss + (other - other.detach())
