"""DROP's exact match and F1, by the rules of its official script, on text.

An answer is one span or several. Spans of the prediction and of the gold are matched one to one so that the sum of
their F1 is largest, and the mean is over the longer list; spans with numbers share none of their score unless they
share a number. The script takes spans as lists; a model writes text, so that here ' and ' stands between spans, in
golds and predictions alike, as it does in the prompts.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from math import inf

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def drop_scores(text: str, golds: Sequence[str]) -> tuple[float, float]:
    """Returns exact match and F1, each with the gold that is nearest.

    >>> drop_scores("25 to 44 and under 18", ["under 18 and 25 to 44"])
    (1.0, 1.0)
    >>> drop_scores("under 18", ["under 18 and 25 to 44"])
    (0.0, 0.5)
    """
    scores = [span_scores(split_spans(text), split_spans(gold)) for gold in golds]
    return max(exact for exact, _ in scores), max(f1 for _, f1 in scores)


def split_spans(text: str) -> list[str]:
    """Returns the spans that a text lists."""
    return re.split(r"\s+and\s+", text)


def span_scores(predicted: Sequence[str], gold: Sequence[str]) -> tuple[float, float]:
    """Returns exact match and F1 of two lists of spans; F1 is rounded to two digits, as the script does."""
    said, right = [normalize(span) for span in predicted], [normalize(span) for span in gold]
    exact = float(set(said) == set(right) and len(said) == len(right))
    bags = [[set(span.split()) for span in spans] for spans in (said, right)]
    best = _best_matching([[_bag_f1(one, other) for one in bags[0]] for other in bags[1]])
    return exact, round(best / max(len(said), len(right)), 2)


def normalize(span: str) -> str:
    """Returns a span as DROP compares it: words split at hyphens too, numbers as floats, no punctuation or articles.

    >>> normalize("The 1,200 twenty-one  yards, 3.50")
    '1200.0 twenty one yards 3.5'
    """
    words = []
    for word in re.split(" |-", span.lower()):
        kept = word if _is_number(word) else word.translate(_PUNCTUATION)
        kept = str(float(kept)) if _is_number(kept) else kept
        words += _ARTICLES.sub(" ", kept).split()
    return " ".join(words)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _bag_f1(said: set[str], right: set[str]) -> float:
    """Returns the F1 of two sets of words; 0 where the gold has numbers and none of them was said."""
    numbers = {word for word in right if _is_number(word)}
    if numbers and not numbers & said:
        return 0.0
    shared = len(said & right)
    precision = shared / len(said) if said else 1.0
    recall = shared / len(right) if right else 1.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _best_matching(scores: list[list[float]]) -> float:
    """Returns the largest sum of scores of a one-to-one matching of gold spans (rows) with predicted ones (columns).

    The Hungarian method: rows are added one by one, each along the path that raises the sum most. ``row_gift`` and
    ``column_price`` are the dual variables; ``row_of[0]`` is the row being added.
    """
    if len(scores) > len(scores[0]):
        scores = [list(column) for column in zip(*scores, strict=True)]
    rows, columns = len(scores), len(scores[0])
    row_gift, column_price = [0.0] * (rows + 1), [0.0] * (columns + 1)
    row_of = [0] * (columns + 1)
    for row in range(1, rows + 1):
        row_of[0], column = row, 0
        slack, came_from, reached = [inf] * (columns + 1), [0] * (columns + 1), [False] * (columns + 1)
        while row_of[column]:
            reached[column] = True
            here = row_of[column]
            for other in range(1, columns + 1):
                reduced = -scores[here - 1][other - 1] - row_gift[here] - column_price[other]
                if not reached[other] and reduced < slack[other]:
                    slack[other], came_from[other] = reduced, column
            following = min((one for one in range(1, columns + 1) if not reached[one]), key=slack.__getitem__)
            step = slack[following]
            for other in range(columns + 1):
                if reached[other]:
                    row_gift[row_of[other]] += step
                    column_price[other] -= step
                else:
                    slack[other] -= step
            column = following
        while column:
            row_of[column] = row_of[came_from[column]]
            column = came_from[column]
    return sum(scores[row - 1][column - 1] for column, row in enumerate(row_of) if column and row)
