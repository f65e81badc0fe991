"""The settings of each optimizer. ``loopt.training.optim`` builds what they describe."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from loopt.errors import require


@dataclass(frozen=True)
class OptimizerConfig:
    """What every optimizer has: a learning rate with its schedule, weight decay, and clipping."""

    name: ClassVar[str]

    lr: float = 1e-3
    """Peak learning rate, reached after the warm-up and decayed to zero by a cosine."""
    warmup_steps: int = 1000
    """Steps in which the learning rate rises to its peak."""
    weight_decay: float = 0.0
    """On matrices; norms and biases are left alone."""
    clip_norm: float = 1.0
    """Largest norm of the whole gradient."""

    def __post_init__(self) -> None:
        require(math.isfinite(self.lr) and self.lr > 0, "optim.lr", self.lr, "more than 0")
        require(self.warmup_steps >= 0, "optim.warmup_steps", self.warmup_steps, "0 or more")
        require(self.weight_decay >= 0, "optim.weight_decay", self.weight_decay, "0 or more")
        require(self.clip_norm > 0, "optim.clip_norm", self.clip_norm, "more than 0")


@dataclass(frozen=True)
class AdafactorConfig(OptimizerConfig):
    """Adafactor, the paper's optimizer."""

    name: ClassVar[str] = "adafactor"

    scale_parameter: bool = True
    """The learning rate is relative to each matrix's own size."""


@dataclass(frozen=True)
class AdamWConfig(OptimizerConfig):
    """AdamW, with its two running means."""

    name: ClassVar[str] = "adamw"

    betas: tuple[float, float] = (0.9, 0.95)
    """How much of the running means each step keeps: of the gradient, and of its square."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(0 <= beta < 1 for beta in self.betas), "optim.betas", self.betas, "0 up to, not including, 1")


@dataclass(frozen=True)
class MuonConfig(AdamWConfig):
    """Muon for the matrices of the layers, and AdamW for the rest."""

    name: ClassVar[str] = "muon"


OPTIMIZERS: dict[str, type[OptimizerConfig]] = {kind.name: kind for kind in (AdafactorConfig, AdamWConfig, MuonConfig)}


def with_optimizer(config: OptimizerConfig, name: str) -> OptimizerConfig:
    """Returns the settings of the optimizer ``name``: those that it shares with ``config``, else its defaults."""
    require(name in OPTIMIZERS, "optim.name", name, " | ".join(OPTIMIZERS))
    kind = OPTIMIZERS[name]
    shared: dict[str, Any] = {
        field.name: getattr(config, field.name) for field in fields(kind) if hasattr(config, field.name)
    }
    return kind(**shared)
