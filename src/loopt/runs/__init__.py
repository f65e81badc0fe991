"""A run on disk. Everything that reads or writes one goes through here."""

from loopt.runs.checkpoint import Best, CheckpointError, TrainState
from loopt.runs.config import OptimConfig, TrainConfig
from loopt.runs.run import Run, read_config

__all__ = [
    "Best",
    "CheckpointError",
    "OptimConfig",
    "Run",
    "TrainConfig",
    "TrainState",
    "read_config",
]
