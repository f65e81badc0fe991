"""The gap that looping covers, and what a model would answer after each loop."""

from loopt.analysis.gap import percent_gap
from loopt.analysis.thoughts import LoopAnswer, answers_by_loop

__all__ = ["LoopAnswer", "answers_by_loop", "percent_gap"]
