"""Training: one trainer for every source."""

from loopt.training.callbacks import Callback
from loopt.training.outcome import DivergedError, Outcome
from loopt.training.session import Session
from loopt.training.trainer import train, train_stepwise

__all__ = ["Callback", "DivergedError", "Outcome", "Session", "train", "train_stepwise"]
