"""Making sense of what was measured."""

from loopt.analysis.gap import percent_gap
from loopt.analysis.thoughts import LoopAnswer, answers_by_loop

__all__ = ["LoopAnswer", "answers_by_loop", "percent_gap"]
