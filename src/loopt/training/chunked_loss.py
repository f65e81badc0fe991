"""The readout and the cross-entropy in one, some tokens at a time: the logits of all tokens never exist together.

With 50,000 words they would be the largest tensor of a training step by far. Here a chunk of them is made, turned in
place into the gradient at the logits, multiplied into the gradients of the hidden states and of the readout, and
forgotten. So the gradients are made on the way forward, and the way back only scales them.

Between its matrix products a chunk goes through one compiled function. Row by row that takes the highest logit and the
sum of powers in one go, and writes the gradient while the row is still in the cache. A kernel written by hand would
have little left to save.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from loopt.tasks import IGNORE

CHUNK_BYTES = 2**29
"""Of logits at a time: at 50,304 words in bfloat16, 5,336 tokens. Every chunk but the first reads and writes the
readout's whole gradient again, so fewer are faster."""


@torch.compiler.disable  # type: ignore[untyped-decorator]
def chunked_loss(
    x: Tensor,
    readout: Tensor,
    targets: Tensor,
    weights: Tensor,
    *,
    compiled: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
) -> Tensor:
    """Cross-entropy of what the readout [V, D] makes of x [N, D], summed with these weights [N]; targets [N] that are
    IGNORE count for nothing. Products are in autocast's type where that is on, everything else at least in float32.
    Without gradients only the loss is computed. Call it from ordinary code: it compiles what is worth it itself."""
    device = x.device.type
    dtype = torch.promote_types(x.dtype, readout.dtype)
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    chunks = math.ceil(x.shape[0] * readout.shape[0] * dtype.itemsize / chunk_bytes)
    rows = math.ceil(x.shape[0] / chunks)  # all chunks of one size, but for the last
    asked = targets != IGNORE
    targets, weights = torch.where(asked, targets, 0), torch.where(asked, weights, 0.0)
    with torch.autocast(device, enabled=False):
        if torch.is_grad_enabled() and (x.requires_grad or readout.requires_grad):
            loss: Tensor = _ChunkedLoss.apply(x, readout, targets, weights, dtype, rows, compiled)
            return loss
        x, readout = x.to(dtype), readout.to(dtype)
        measure = _compiled(_log_probabilities) if compiled else _log_probabilities
        parts = zip(x.split(rows), targets.split(rows), strict=True)
        found = [measure(F.linear(some, readout), wanted) for some, wanted in parts]
        return -(torch.cat(found) * weights).sum()


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        readout: Tensor,
        targets: Tensor,
        weights: Tensor,
        dtype: torch.dtype,
        rows: int,
        compiled: bool,
    ) -> Tensor:
        ctx.types = x.dtype, readout.dtype
        x, readout = x.to(dtype), readout.to(dtype)
        grad_x = torch.empty_like(x)  # [N, D]
        grad_readout = torch.empty_like(readout, dtype=torch.promote_types(dtype, torch.float32))  # [V, D]
        measure = _compiled(_turn_into_gradient) if compiled else _turn_into_gradient
        found = []
        for start in range(0, len(x), rows):
            here = slice(start, start + rows)
            logits = F.linear(x[here], readout)  # [rows, V]
            found.append(measure(logits, targets[here], weights[here]))
            # Where the target is, (p - 1) · weight; written from outside, since a compiler would copy the chunk for it.
            logits.scatter_(1, targets[here, None], (found[-1].expm1() * weights[here])[:, None].to(dtype))
            torch.mm(logits, readout, out=grad_x[here])
            _add_product(grad_readout, logits, x[here], start > 0)
            del logits  # before the next are made
        ctx.save_for_backward(grad_x, grad_readout)
        return -(torch.cat(found) * weights).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_readout = ctx.saved_tensors
        of_x, of_readout = ctx.types
        # In place, since it is large: a second way back through the same graph is refused by autograd.
        return (grad_x * grad).to(of_x), grad_readout.mul_(grad).to(of_readout), *[None] * 5


def _log_probabilities(logits: Tensor, targets: Tensor) -> Tensor:
    """Of the targets [N] under logits [N, V]."""
    exact = torch.promote_types(logits.dtype, torch.float32)
    return logits.log_softmax(1, dtype=exact).gather(1, targets[:, None])[:, 0]


def _turn_into_gradient(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Overwrite the logits [N, V] with probability · weight, which is their gradient but at the targets; the log of the
    targets' own probabilities [N]."""
    exact = torch.promote_types(logits.dtype, torch.float32)
    scores = logits.log_softmax(1, dtype=exact)
    wanted = scores.gather(1, targets[:, None])[:, 0]
    logits.copy_(scores.exp() * weights[:, None])
    return wanted


def _add_product(total: Tensor, grad: Tensor, x: Tensor, keep: bool) -> None:
    """total [V, D] = grad [rows, V]ᵀ · x [rows, D], added to what is there if that is to be kept. The sums are in the
    type of the total, which is float32 where the factors are in bfloat16."""
    if grad.is_cuda and grad.dtype != total.dtype:
        torch.addmm(total, grad.T, x, out_dtype=total.dtype, beta=int(keep), out=total)
    else:
        total.addmm_(grad.T.to(total.dtype), x.to(total.dtype), beta=int(keep))


@functools.cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function)
