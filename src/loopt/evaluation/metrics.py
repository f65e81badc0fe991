"""The metrics of the suite: each compares a generated text with the gold answers of a question, from 0 to 1.

The rules are those that the data sets' own scripts publish: SQuAD's normalization, exact match and F1, with which
TyDi QA and CoQA score as well; QuAC's F1; DROP's, in ``drop_metric``. Only how a math word problem's number is read is
our own.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from loopt.evaluation.catalogue import Metric
from loopt.evaluation.drop_metric import drop_scores
from loopt.evaluation.questions import CANNOT_ANSWER, UNANSWERABLE

Golds = tuple[str, ...]
Compare = Callable[[str, Golds], float | None]
"""From a generated text and the golds to a score; None where the metric leaves the question out."""

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@lru_cache(2**16)
def normalize(text: str) -> str:
    """Returns a text as SQuAD compares it: lower case, without punctuation and articles.

    >>> normalize(" The  Ostrel-Canal, 1,801!")
    'ostrelcanal 1801'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(text: str, golds: Golds) -> float:
    """Tells whether a text is any of the golds, both normalized."""
    return float(normalize(text) in {normalize(gold) for gold in golds})


def token_f1(text: str, gold: str) -> float:
    """Returns SQuAD's F1 of the words that a text and a gold share; where either has none, whether both have none."""
    said, right = normalize(text).split(), normalize(gold).split()
    if not said or not right:
        return float(said == right)
    shared = sum((Counter(said) & Counter(right)).values())
    return 2 * shared / (len(said) + len(right))


def f1(text: str, golds: Golds) -> float:
    """Returns the F1 with the gold that is nearest."""
    return max(token_f1(text, gold) for gold in golds)


def without_no_answer(text: str) -> str:
    """Returns nothing for ``unanswerable``, as SQuADv2 writes it, and any other text as it is."""
    return "" if normalize(text) == UNANSWERABLE else text


def f1_no_answer(text: str, golds: Golds) -> float:
    """Returns SQuADv2's F1: nothing said is right where there is no answer, and wrong elsewhere."""
    return f1(without_no_answer(text), tuple(map(without_no_answer, golds)))


def exact_match_no_answer(text: str, golds: Golds) -> float:
    """Tells whether a text is any of the golds, by SQuADv2's rule for no answer."""
    return exact_match(without_no_answer(text), tuple(map(without_no_answer, golds)))


def quac_f1(text: str, gold: str) -> float:
    """Returns QuAC's F1 with one reference: CANNOTANSWER is right or wrong as a whole."""
    said, right = text.strip() == CANNOT_ANSWER, gold == CANNOT_ANSWER
    if said or right:
        return float(said and right)
    return token_f1(text, gold) if normalize(text) else 0.0


def f1_quac(text: str, golds: Golds) -> float:
    """Returns QuAC's F1 with the reference that is nearest."""
    return max(quac_f1(text, gold) for gold in golds)


def leave_one_out(compare: Callable[[str, Golds], float], text: str, golds: Golds) -> float:
    """Returns the mean score when each reference in turn is left out, as for a human who wrote that one."""
    if len(golds) == 1:
        return compare(text, golds)
    return sum(compare(text, golds[:one] + golds[one + 1 :]) for one in range(len(golds))) / len(golds)


HUMAN_F1 = 0.4
"""QuAC leaves out the questions on which its annotators agree less than this."""


def f1_quac_official(text: str, golds: Golds) -> float | None:
    """Returns QuAC's F1 by its scorer: leave-one-out, and None where the annotators disagree too much."""
    if len(golds) > 1:
        human = sum(f1_quac(gold, golds[:one] + golds[one + 1 :]) for one, gold in enumerate(golds)) / len(golds)
        if human < HUMAN_F1:
            return None
    return leave_one_out(f1_quac, text, golds)


_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_NUMBER = re.compile(rf"(?<![\w.])-?(?:{_INTEGER}(?:\.[0-9]+)?|\.[0-9]+)(?:/[1-9][0-9]*)?")
NON_INTEGER_TOLERANCE = Fraction(1, 1000)
"""How far from a gold that is no integer a number may be, relative to it: 0.667 is 2/3."""


def first_number(text: str) -> Fraction | None:
    """Returns the first number in a text: with commas, decimals, or as a fraction; None where there is none.

    >>> [first_number(text) for text in ("$1,250.50 in all", "-7", "about 3/4 cup", "none", "b=2, not 3")]
    [Fraction(2501, 2), Fraction(-7, 1), Fraction(3, 4), None, Fraction(2, 1)]
    """
    found = _NUMBER.search(text[:1000])
    return _read_number(found[0]) if found else None


def _read_number(written: str) -> Fraction:
    over, _, under = written.replace(",", "").partition("/")
    return Fraction(over) / int(under or 1)


def number_match(text: str, golds: Golds) -> float:
    """Tells whether the first number that a text has is the gold one.

    Shots answer with the number alone, so whatever follows the first number is no part of the answer. An integer has to
    be met exactly, another number within a thousandth. A gold that is not one number (ASDiv has names, times, ratios
    and lists) is compared as its words and numbers in order.
    """
    return float(any(_is_number(text, gold) for gold in golds))


def _is_number(text: str, gold: str) -> bool:
    if not _NUMBER.fullmatch(gold):
        return _words(text) == _words(gold)
    said, right = first_number(text), _read_number(gold)
    if said is None or right.denominator == 1:
        return said == right
    return abs(said - right) <= NON_INTEGER_TOLERANCE * abs(right)


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", re.sub(r"[^\w]+", " ", text.lower())).split()


METRICS: dict[Metric, dict[str, Compare]] = {
    "exact_match": {"exact match": exact_match},
    "f1": {"F1": f1, "exact match": exact_match},
    "f1_no_answer": {"F1": f1_no_answer, "exact match": exact_match_no_answer},
    "f1_drop": {"F1": lambda text, golds: drop_scores(text, golds)[1], "exact match": lambda *it: drop_scores(*it)[0]},
    "f1_quac": {"F1": f1_quac, "leave-one-out F1": f1_quac_official},
    "f1_coqa": {
        "F1": f1,
        "leave-one-out F1": lambda text, golds: leave_one_out(f1, text, golds),
        "exact match": exact_match,
    },
    "number_match": {"number match": number_match},
}
"""What is measured for each metric of the catalogue: the first is the task's figure, the others stand beside it."""
