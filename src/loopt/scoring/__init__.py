"""Scoring models: token log-probabilities, exact match on tasks, perplexity on text."""

from loopt.scoring.exact_match import Score, exact_match, mean_score, score_each
from loopt.scoring.perplexity import perplexity, text_loss
from loopt.scoring.readout import read_out, token_log_probabilities
from loopt.scoring.text_score import TextScore, score_text

__all__ = [
    "Score",
    "TextScore",
    "exact_match",
    "mean_score",
    "perplexity",
    "read_out",
    "score_each",
    "score_text",
    "text_loss",
    "token_log_probabilities",
]
