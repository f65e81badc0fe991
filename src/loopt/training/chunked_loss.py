"""The readout and the cross-entropy in one, some tokens at a time: the logits of all tokens never exist together.

With 50,000 words they would be the largest tensor of a training step by far. Here a chunk of them is made, turned into
the gradient at the logits, multiplied into the gradients of the hidden states and of the readout, and forgotten. So the
gradients are made on the way forward, and the way back only scales them.

Between its matrix products a chunk goes through one compiled function. Row by row that takes the highest logit and the
sum of powers in one go, and writes the gradient while the row is still in the cache. It does not write in place: a
compiler that tries variants of a kernel on its inputs may overwrite them before the one run that counts.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from loopt.scoring.readout import CHUNK_BYTES, compiled_once, readout_type, rows_per_chunk, token_log_probabilities
from loopt.tasks import IGNORE

# A chunk has CHUNK_BYTES of logits, and as much of their gradient. Every chunk but the first reads and writes the
# readout's whole gradient again, so fewer are faster.


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
    """Returns the cross-entropy of what the readout [V, D] makes of x [N, D], summed with weights [N]; targets [N] that
    are IGNORE count for nothing. Products are in autocast's type where that is on, everything else at least in float32.
    Without gradients only the loss is computed. Call it from ordinary code: it compiles what is worth it itself."""
    asked = targets != IGNORE
    targets, weights = torch.where(asked, targets, 0), torch.where(asked, weights, 0.0)
    if not torch.is_grad_enabled() or not (x.requires_grad or readout.requires_grad):
        found = token_log_probabilities(x, readout, targets, compiled=compiled, chunk_bytes=chunk_bytes)
        return -(found * weights).sum()
    dtype = readout_type(x, readout)
    rows = rows_per_chunk(x, readout, dtype, chunk_bytes)
    with torch.autocast(x.device.type, enabled=False):
        loss: Tensor = _ChunkedLoss.apply(x, readout, targets, weights, dtype, rows, compiled)
    return loss


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
        differentiate = compiled_once(_gradient) if compiled else _gradient
        found = []
        for start in range(0, len(x), rows):
            here = slice(start, start + rows)
            grad, wanted = differentiate(F.linear(x[here], readout), targets[here], weights[here])  # [rows, V], [rows]
            found.append(wanted)
            torch.mm(grad, readout, out=grad_x[here])
            _add_product(grad_readout, grad, x[here], start > 0)
            del grad  # before the next logits are made
        ctx.save_for_backward(grad_x, grad_readout)
        return -(torch.cat(found) * weights).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_readout = ctx.saved_tensors
        of_x, of_readout = ctx.types
        # In place, since it is large: a second way back through the same graph is refused by autograd.
        return (grad_x * grad).to(of_x), grad_readout.mul_(grad).to(of_readout), *[None] * 5


def _gradient(logits: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradient of the loss at the logits [N, V], (p - 1) · weight at the targets and p · weight elsewhere;
    and the log-probabilities of the targets [N]."""
    exact = torch.promote_types(logits.dtype, torch.float32)
    scores = logits.log_softmax(1, dtype=exact)
    wanted = scores.gather(1, targets[:, None])[:, 0]
    is_target = targets[:, None] == torch.arange(logits.shape[1], device=logits.device)  # [N, V]
    return ((scores.exp() - is_target.to(exact)) * weights[:, None]).to(logits.dtype), wanted


def _add_product(total: Tensor, grad: Tensor, x: Tensor, keep: bool) -> None:
    """Computes total [V, D] = grad [rows, V]ᵀ · x [rows, D], added to what is there if that is to be kept. The sums are
    in the type of the total, which is float32 where the factors are in bfloat16."""
    if grad.is_cuda and grad.dtype != total.dtype:
        torch.addmm(total, grad.T, x, out_dtype=total.dtype, beta=int(keep), out=total)
    else:
        total.addmm_(grad.T.to(total.dtype), x.to(total.dtype), beta=int(keep))
