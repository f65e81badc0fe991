"""Measuring a model: exact match on tasks."""

from loopt.evaluation.exact_match import Score, exact_match, mean_score, score_each

__all__ = ["Score", "exact_match", "mean_score", "score_each"]
