"""A run on disk. Everything that reads or writes one goes through here."""

from loopt.runs.checkpoint import Best, CheckpointError, TrainState
from loopt.runs.config import StartConfig, TrainConfig
from loopt.runs.optimizers import AdafactorConfig, AdamWConfig, MuonConfig, OptimizerConfig
from loopt.runs.run import Run, load, read_config

__all__ = [
    "AdafactorConfig",
    "AdamWConfig",
    "Best",
    "CheckpointError",
    "MuonConfig",
    "OptimizerConfig",
    "Run",
    "StartConfig",
    "TrainConfig",
    "TrainState",
    "load",
    "read_config",
]
