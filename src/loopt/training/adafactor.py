"""Adafactor (Shazeer & Stern, 2018), the paper's optimizer: second moments kept as a row and a column per matrix.

The relative step size is ``lr`` itself, given from outside; there is no built-in 1/sqrt(t) decay.
Nothing here reads a tensor's value on the host, so ``step`` can be captured in a CUDA graph and runs on DTensors.
``_update`` is what is computed; ``loopt.kernels.adafactor`` computes it faster.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from loopt.errors import require
from loopt.kernels import has_triton


class Adafactor(torch.optim.Optimizer):
    """Adafactor. ``lr`` may be a 0-dim tensor, changed in place between steps. ``eps`` is the paper's pair: the first
    is added to the squared gradients, the second is the smallest scale a parameter is taken to have. ``compiled`` takes
    our kernels for what they fit: float32 on CUDA, not sharded."""

    clips_gradients = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        *,
        beta2_decay: float = -0.8,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        compiled: bool = False,
    ) -> None:
        require(lr.ndim == 0 if isinstance(lr, Tensor) else lr >= 0, "Adafactor.lr", lr, "0 or more, or a 0-dim tensor")
        require(beta2_decay < 0, "Adafactor.beta2_decay", beta2_decay, "less than 0")
        require(eps[0] > 0 and eps[1] >= 0, "Adafactor.eps", eps, "a pair of a positive number and one of 0 or more")
        require(clip_threshold > 0, "Adafactor.clip_threshold", clip_threshold, "more than 0")
        require(weight_decay >= 0, "Adafactor.weight_decay", weight_decay, "0 or more")
        options = {
            "lr": lr,
            "beta2_decay": beta2_decay,
            "eps": eps,
            "clip_threshold": clip_threshold,
            "weight_decay": weight_decay,
            "scale_parameter": scale_parameter,
        }
        super().__init__(params, options)
        self._compiled = compiled and has_triton()

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None, grad_factor: Tensor | None = None
    ) -> float | None:
        """Takes a step by the gradients times ``grad_factor``, a 0-dim tensor; by 0 they are zero, whatever they
        were."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if not state:
                        state |= _first_state(parameter)
                    options = {name: value for name, value in group.items() if name != "params"}
                    update = self._update_for(parameter, parameter.grad)
                    update(parameter, parameter.grad, state, grad_factor, **options)
        return loss

    def _update_for(self, parameter: Tensor, grad: Tensor) -> Callable[..., None]:
        if self._compiled and parameter.is_cuda:
            from loopt.kernels import adafactor as kernels

            if kernels.fits(parameter, grad):
                return kernels.update
        return _update


def _first_state(parameter: nn.Parameter) -> dict[str, Tensor]:
    square = torch.zeros_like(parameter, dtype=torch.promote_types(parameter.dtype, torch.float32))
    state = {"step": torch.zeros((), dtype=torch.float32, device=parameter.device)}
    if parameter.ndim >= 2:
        return state | {"row_var": _mean(square, -1), "col_var": _mean(square, -2)}
    return state | {"variance": square}


def _update(
    parameter: Tensor,
    grad: Tensor,
    state: dict[str, Tensor],
    grad_factor: Tensor | None,
    lr: float | Tensor,
    beta2_decay: float,
    eps: tuple[float, float],
    clip_threshold: float,
    weight_decay: float,
    scale_parameter: bool,
) -> None:
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    weights, grad = parameter.to(dtype), grad.to(dtype)
    if grad_factor is not None:
        grad = torch.where(grad_factor == 0.0, 0.0, grad * grad_factor)
    grad_eps, scale_eps = eps

    state["step"].add_(1)
    newest = state["step"].to(dtype) ** beta2_decay  # 1 - beta2_t, the share of this step's gradient

    square = grad.square() + grad_eps
    if grad.ndim >= 2:
        row = _running_mean(state["row_var"], _mean(square, -1), newest)  # [..., n, 1]
        col = _running_mean(state["col_var"], _mean(square, -2), newest)  # [..., 1, m]
        # Two square roots rather than one of row * col, which underflows where gradients are zero.
        update = grad * (row / _mean(row, -2)).rsqrt() * col.rsqrt()
    else:
        update = grad * _running_mean(state["variance"], square, newest).rsqrt()

    update = update / (_rms(update) / clip_threshold).clamp(min=1.0)
    scale = _rms(weights).clamp(min=scale_eps) if scale_parameter else 1.0
    parameter.copy_(weights * (1 - lr * weight_decay) - update * (lr * scale))


def _running_mean(mean: Tensor, sample: Tensor, newest: Tensor) -> Tensor:
    return mean.copy_(mean + (sample - mean) * newest)


def _mean(x: Tensor, dim: int) -> Tensor:
    # A sum divided by the global size: right for any sharding of a DTensor, also an uneven one.
    return x.sum(dim, keepdim=True) / x.shape[dim]


def _rms(x: Tensor) -> Tensor:
    return (x.square().sum() / x.numel()).sqrt()
