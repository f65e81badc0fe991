"""torch's Muon with its learning rate as a tensor, so that a step can be captured in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Muon(torch.optim.Muon):
    """Muon that reads its rate on the device. torch's own takes it as a number from the host; but what it does is
    proportional to the rate, so it takes a step of rate 1, and the weights go as much of the way as the tensor says."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        rates = [group["lr"] for group in self.param_groups]
        before = [[parameter.clone() for parameter in group["params"]] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] = 1.0
        loss: float | None = super().step(closure)
        for group, rate, old_weights in zip(self.param_groups, rates, before, strict=True):
            group["lr"] = rate
            for parameter, old in zip(group["params"], old_weights, strict=True):
                parameter.copy_(old + (parameter - old) * rate)
        return loss
