"""Training: one trainer for every task."""

from loopt.training.trainer import TIMING_FIELDS, DivergedError, Outcome, Session, train

__all__ = ["TIMING_FIELDS", "DivergedError", "Outcome", "Session", "train"]
