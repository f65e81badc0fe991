"""The update: the gradient's norm is clipped, and every optimizer takes its step, unless something is not finite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from loopt.kernels import has_triton
from loopt.training.optim import ClippingOptimizer, set_lr
from loopt.training.parallel import full_tensor


def update(
    parameters: Iterable[Tensor],
    optimizers: Sequence[Optimizer],
    loss: Tensor,
    lr: Tensor,
    clip_norm: float,
    compiled: bool = False,
) -> tuple[Tensor, Tensor]:
    """Takes a step by the clipped gradient, and returns the gradient's norm before that, and whether it and the loss
    are finite. Where they are not, nothing moves."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    grad_norm = full_tensor(torch.nn.utils.get_total_norm(grads))
    finite = loss.isfinite() & grad_norm.isfinite()
    clipping = torch.where(finite, (clip_norm / (grad_norm + 1e-6)).clamp(max=1.0), 0.0)
    set_lr(optimizers, lr * finite)
    for optimizer in optimizers:
        if isinstance(optimizer, ClippingOptimizer):
            optimizer.step(grad_factor=clipping)
        else:
            _scale_gradients(optimizer, clipping, compiled)
            optimizer.step()
    return grad_norm, finite


def _scale_gradients(optimizer: Optimizer, factor: Tensor, compiled: bool) -> None:
    """Multiplies the gradients. By 0 all is zero, whatever it was: zero times not-a-number is not, and would move the
    weights at any learning rate."""
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    for grad in grads:
        grad = grad.to_local() if isinstance(grad, DTensor) else grad
        if compiled and has_triton() and grad.is_cuda and grad.is_contiguous():
            from loopt.kernels import clip

            clip.scale_or_zero(grad, factor)
        else:
            grad.mul_(factor).masked_fill_(factor == 0.0, 0.0)
