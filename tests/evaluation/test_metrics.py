"""Metrics give what the data sets' own scripts say, on predictions made by hand."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopt.evaluation import drop_metric, metrics
from loopt.evaluation.catalogue import TASKS
from loopt.evaluation.metrics import METRICS


@pytest.mark.parametrize(
    ("text", "golds", "right"),
    [
        ("Ada Vint", ("Vint", "Ada Vint"), True),  # any alias
        ("  the  ADA vint. ", ("Ada Vint",), True),  # articles, case, punctuation, spaces
        ("An Ada-Vint", ("AdaVint",), True),  # punctuation goes, and leaves no space
        ("Ada Vint and Bero Lusk", ("Ada Vint",), False),
        ("1,801", ("1801",), True),
        ("theater", ("heater",), False),  # an article within a word stays
        ("", ("Ada Vint",), False),
        ("", ("The",), True),  # nothing is left of this gold
    ],
)
def test_exact_match_is_squads(text: str, golds: tuple[str, ...], right: bool) -> None:
    assert metrics.exact_match(text, golds) == right


@pytest.mark.parametrize(
    ("text", "golds", "score"),
    [
        ("the old Ada Vint", ("Ada Vint",), 4 / 5),  # 2 of 3 words right, 2 of 2 found
        ("Vint Vint", ("Vint",), 2 / 3),  # a word counts as often as the gold has it
        ("Lusk", ("Ada Vint", "Bero Lusk"), 2 / 3),  # the nearest gold
        ("", ("Ada",), 0),
        ("Ada", ("Bero",), 0),
    ],
)
def test_f1_is_squads(text: str, golds: tuple[str, ...], score: float) -> None:
    assert metrics.f1(text, golds) == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "golds", "score"),
    [
        ("", ("unanswerable",), 1),
        ("Unanswerable.", ("unanswerable",), 1),
        ("Ada", ("unanswerable",), 0),
        ("unanswerable", ("Ada", "Ada Vint"), 0),
        ("", ("Ada",), 0),
        ("the question is unanswerable", ("unanswerable",), 0),  # an answer like any other
    ],
)
def test_no_answer_is_right_or_wrong_as_a_whole(text: str, golds: tuple[str, ...], score: float) -> None:
    assert metrics.f1_no_answer(text, golds) == metrics.exact_match_no_answer(text, golds) == score


def test_quac_cannot_answer_shares_no_words() -> None:
    assert metrics.f1_quac("CANNOTANSWER", ("CANNOTANSWER",)) == 1
    assert metrics.f1_quac("", ("CANNOTANSWER",)) == 0
    assert metrics.f1_quac("CANNOTANSWER", ("in 1801",)) == 0
    assert metrics.f1_quac("built in 1801", ("in 1801", "Ada")) == pytest.approx(4 / 5)


def test_with_one_reference_left_out_the_first_reference_is_not_perfect() -> None:
    golds = ("in 1801", "1801", "1801")
    # left out: the first, then F1 of "in 1801" with "1801" is 2/3; either other, then the first is there and it is 1
    assert metrics.leave_one_out(metrics.f1, "in 1801", golds) == pytest.approx((2 / 3 + 1 + 1) / 3)
    assert metrics.leave_one_out(metrics.f1, "in 1801", golds[:1]) == 1


def test_quacs_scorer_leaves_out_what_annotators_disagree_on() -> None:
    assert metrics.f1_quac_official("Ada Vint", ("Ada Vint", "in the year 1801")) is None
    assert metrics.f1_quac_official("Ada Vint", ("Ada Vint", "Vint")) == pytest.approx((2 / 3 + 1) / 2)
    assert metrics.f1_quac_official("Ada Vint", ("Ada Vint",)) == 1


@pytest.mark.parametrize(
    ("text", "golds", "exact", "f1"),
    [
        ("under 18 and 25 to 44", ("25 to 44 and under 18",), 1, 1),  # spans in any order
        ("under 18", ("25 to 44 and under 18",), 0, 0.5),  # one of two spans
        ("under 18 and 45 to 64", ("under 18",), 0, 0.5),  # one too many
        ("Ada and Ada", ("Ada",), 0, 0.5),  # a span twice is one too many
        ("3.50", ("3.5",), 1, 1),  # numbers are compared as numbers
        ("1,200 yards", ("1200 yards",), 1, 1),
        ("12 yards", ("13 yards",), 0, 0),  # another number: the unit does not count
        ("yards 13 long", ("13 yards",), 0, 0.8),
        ("twenty-one", ("twenty one",), 1, 1),  # hyphens part words
        ("the Ada", ("ada",), 1, 1),
        ("28 yards", ("7", "28 yards"), 1, 1),  # the nearest gold
        ("", ("7",), 0, 0),
    ],
)
def test_drop_is_its_scripts(text: str, golds: tuple[str, ...], exact: float, f1: float) -> None:
    assert drop_metric.drop_scores(text, golds) == pytest.approx((exact, f1))


@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_spans_are_matched_as_well_as_any_matching_does(rows: int, columns: int, data: st.DataObject) -> None:
    cells = st.lists(st.sampled_from([0.0, 0.25, 0.4, 0.5, 1.0]), min_size=columns, max_size=columns)
    scores = data.draw(st.lists(cells, min_size=rows, max_size=rows))
    tall = scores if rows >= columns else [list(column) for column in zip(*scores, strict=True)]
    sums = (
        sum(tall[row][column] for column, row in enumerate(chosen))
        for chosen in permutations(range(len(tall)), len(tall[0]))
    )
    assert drop_metric._best_matching(scores) == pytest.approx(max(sums))


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        ("43", "43", True),
        ("43 seashells", "43", True),
        ("She has 43.", "43", True),
        ("$1,250.50", "1250.5", True),
        ("43.0", "43", True),
        ("70 - 27 = 43", "43", False),  # the first number is the answer
        ("44", "43", False),
        ("1001", "1000", False),  # integers are met exactly
        ("1000000.0001", "1000000", False),
        ("0.667", "0.6666666666666666", True),
        ("2/3", "0.6666666666666666", True),
        ("0.6", "0.6666666666666666", False),
        ("-5", "5", False),
        ("forty-three", "43", False),
        ("", "43", False),
        ("yes", "Yes", True),
        ("Mrs. Vint", "Mrs Vint", True),
        ("3:30 p.m.", "3:30 p.m.", True),
        ("3:45", "3:30", False),
        ("5, 15", "5; 15", True),
        ("15; 5", "5; 15", False),
        ("56", "5:6", False),
        ("", "-(1/3)", False),
    ],
)
def test_the_first_number_is_the_answer(text: str, gold: str, right: bool) -> None:
    assert metrics.number_match(text, (gold,)) == right


@given(st.integers(-(10**9), 10**9), st.integers(0, 3))
def test_a_number_is_read_however_it_is_written(number: int, digits: int) -> None:
    value = Fraction(number, 10**digits)
    for written in (f"{number / 10**digits:.{digits}f}", f"{number / 10**digits:,.{digits}f}"):
        assert metrics.first_number(f"it is {written} pears, not 7") == value


@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4).map(tuple))
def test_any_text_scores_from_0_to_1_and_a_gold_scores_1(text: str, golds: tuple[str, ...]) -> None:
    for named in METRICS.values():
        for compare in named.values():
            score = compare(text, golds)
            assert score is None or 0 <= score <= 1
    assert metrics.exact_match(golds[-1], golds) == metrics.f1(golds[-1], golds) == 1
    assert drop_metric.drop_scores(golds[-1], golds) == (1, 1)


def test_every_task_has_a_metric_with_a_name() -> None:
    assert {task.metric for task in TASKS.values()} == set(METRICS)
