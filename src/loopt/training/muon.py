"""torch's Muon with its learning rate as a tensor, so that a step can be captured in a CUDA graph, and with matrices of
one shape orthogonalized together: one by one, those of 24 narrow layers are thousands of kernels that fill no GPU."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


class Muon(torch.optim.Muon):
    """Muon with updates of AdamW's size, so that one rate serves both."""

    def __init__(self, params: Iterable[nn.Parameter], lr: Tensor, weight_decay: float) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss: float | None = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            of_a_shape = defaultdict[tuple[int, ...], list[Tensor]](list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    of_a_shape[tuple(sorted(parameter.shape))].append(parameter)
            for shape, parameters in of_a_shape.items():
                directions = torch.stack([_wide(self._momentum(one, group["momentum"])) for one in parameters])
                updates = orthogonalize(directions, group["ns_coefficients"], group["ns_steps"], group["eps"])
                updates = updates.float() * (group["lr"] * 0.2 * math.sqrt(shape[1]))  # [N, A, B], A ≤ B
                for parameter, update in zip(parameters, updates.unbind(), strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    _wide(parameter).sub_(update)
        return loss

    def _momentum(self, parameter: Tensor, momentum: float) -> Tensor:
        """Takes up the parameter's gradient, and returns Nesterov's direction."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter.grad)
        average: Tensor = state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(average, momentum)


def orthogonalize(matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Returns matrices [N, A, B], A ≤ B, with their singular values drawn to about 1, in bfloat16 (Newton-Schulz)."""
    a, b, c = coefficients
    found = matrices.bfloat16()
    found = found / found.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = found @ found.mT  # [N, A, A]
        found = torch.baddbmm(found, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found


def _wide(matrix: Tensor) -> Tensor:
    """Returns the matrix with its longer side last, as a view."""
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
