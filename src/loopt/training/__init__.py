"""Training: one trainer for every task."""

from loopt.training.trainer import TIMING_FIELDS, Company, DivergedError, Outcome, Session, train, train_stepwise

__all__ = ["TIMING_FIELDS", "Company", "DivergedError", "Outcome", "Session", "train", "train_stepwise"]
