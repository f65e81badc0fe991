"""Figures can be read by everyone: told apart without color, in words, with nothing empty or on top of another."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from look import contrast, seen_apart, texts_of
from loopt.analysis.difference import Difference
from loopt.analysis.exits import THRESHOLDS
from loopt.analysis.gap import Gap
from loopt.analysis.intervals import Interval
from loopt.analysis.isoplot import IsoPoint, fit_isoplot
from loopt.analysis.points import Point
from loopt.analysis.scaling import fit_depth_law, series_of
from loopt.evaluation.catalogue import GROUPS, TASKS, metric_in_words
from loopt.plan import LoopPlan
from loopt.report.by_difficulty import draw_by_difficulty
from loopt.report.by_loops import draw_by_loops
from loopt.report.comparison import Comparison, TrainedModel
from loopt.report.curves import draw_curves
from loopt.report.difference_figure import draw_differences
from loopt.report.exit_curve import draw_exit_curve
from loopt.report.figures import (
    COLORS,
    FOR_TEXT,
    PAPER,
    Spread,
    in_style,
    label_ends,
    panels,
    spread_labels,
    style_of,
    write_figure,
)
from loopt.report.gap_figure import draw_gaps
from loopt.report.heatmaps import draw_heatmaps
from loopt.report.isoplot_figure import draw_isoplot
from loopt.report.scaling_figure import draw_scaling
from loopt.report.sheet import Cell, Line, Sheet
from loopt.report.sheet_figure import draw_sheet
from loopt.report.trace_figure import draw_trace
from loopt.theory.proof import Trace

INTERNAL = re.compile(r"\b\d+x\d+|_|seed\d|\bp\d+\b|phop|igsm|kl\b|-fixed|-random")


def is_drawn(paths: list[Path], name: str) -> list[str]:
    """Checks that a figure is there twice and in words; returns its texts."""
    assert [path.name for path in paths] == [f"{name}.svg", f"{name}.png"]
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    assert paths[0].stat().st_size < 200_000
    texts = texts_of(paths[0])
    assert texts
    assert not [text for text in texts if INTERNAL.search(text)]
    return texts


def test_colors_are_told_apart_by_deuteranopes() -> None:
    for one, other in itertools.combinations(COLORS, 2):
        assert seen_apart(one, other) > 15, (one, other)
    assert seen_apart("#5f8f2f", "#9a7030") < 15  # such as a green and a brown, which are not


def test_curves_are_told_apart_without_color() -> None:
    shapes = [(style["marker"], style["linestyle"]) for style in map(style_of, range(20))]
    assert len(set(shapes)) == 20


def test_labels_can_be_read_on_paper() -> None:
    assert min(contrast(FOR_TEXT.get(color, color), PAPER) for color in COLORS) >= 4.5


@given(st.lists(st.floats(0, 100), max_size=12))
def test_labels_keep_apart_and_in_order(heights: list[float]) -> None:
    moved = spread_labels(heights, 13.0, (-100.0, 200.0))
    assert all(b - a >= 13 - 1e-9 for a, b in itertools.pairwise(sorted(moved)))
    for (was, now), (other_was, other_now) in itertools.combinations(zip(heights, moved, strict=True), 2):
        assert was == other_was or (was < other_was) == (now < other_now)
    assert sum(moved) == pytest.approx(sum(heights))
    if all(abs(a - b) >= 13 for a, b in itertools.combinations(heights, 2)):
        assert moved == pytest.approx(heights)


@given(st.lists(st.floats(-20, 120), min_size=1, max_size=12), st.floats(0, 30))
def test_labels_stay_within_as_far_as_there_is_room(heights: list[float], apart: float) -> None:
    moved = sorted(spread_labels(heights, apart, (0.0, 100.0)))
    assert all(b - a >= apart - 1e-9 for a, b in itertools.pairwise(moved))
    below, above = -moved[0], moved[-1] - 100.0
    if (len(heights) - 1) * apart <= 100:
        assert max(below, above) <= 1e-9
    else:
        assert below == pytest.approx(above, abs=1e-9)


@pytest.mark.parametrize("log", [False, True])
@in_style
def test_labels_stand_beside_the_axes_and_on_no_other_label(log: bool) -> None:
    figure, (axes,) = panels(1, 6.0, 3.0)
    for y in (40.0, 41.0, 42.0, 99.0):
        axes.plot([1, 10], [1, y])
    if log:
        axes.set_yscale("log")
    label_ends(axes, [(10, y, f"a model\nof {y:g}", COLORS[0]) for y in (1.0, 40.0, 41.0, 42.0, 99.0)])
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # an annotation's own has its line in it, too
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert all(axes.bbox.x1 < box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert all(axes.bbox.y0 <= box.y0 and box.y1 <= axes.bbox.y1 for box in boxes)
    led = [text.arrow_patch.get_window_extent() for text in axes.texts if text.arrow_patch]
    assert len(led) >= 2
    assert all(line.x1 <= box.x0 for line in led for box in boxes)  # so that it crosses no label


def test_nobody_elses_figures_change(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    draw_by_loops({"": {"a": {1: Spread(1, 1, 1)}}}, 1, tmp_path)
    assert dict(matplotlib.rcParams) == before


def test_a_spread_has_the_range_of_every_seed() -> None:
    assert Spread.of([1.0, 3.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.of([2.0], every=[2.0, 9.0]) == Spread(2.0, 2.0, 9.0)


def test_loops_are_drawn_with_a_label_at_the_end_of_each_curve(tmp_path: Path) -> None:
    curves = {name: {n: Spread(n * 10, n * 9, n * 11) for n in (1, 2, 4)} for name in ("p-hop, 6 loops", "i-GSM, 6")}
    texts = is_drawn(draw_by_loops({"a model": curves}, 2, tmp_path), "loops")
    assert "a model" not in texts  # one needs no name
    assert {*curves, "number of loops at inference", "accuracy, %", "2 in training"} <= set(texts)
    before = (tmp_path / "loops.svg").read_bytes()
    draw_by_loops({"a model": curves}, 2, tmp_path)
    assert (tmp_path / "loops.svg").read_bytes() == before  # the same figure gives the same file
    texts = is_drawn(draw_by_loops({"a model": curves, "another": curves}, 2, tmp_path), "loops")
    assert {"a model", "another"} <= set(texts)
    assert [texts.count(name) for name in curves] == [1, 1]  # one legend for both
    others = {name.replace("6", "8"): curve for name, curve in curves.items()}
    texts = is_drawn(draw_by_loops({"a model": curves, "another": others}, 2, tmp_path), "loops")
    assert {*curves, *others} <= set(texts)


def test_difficulty_has_a_panel_for_each_number_of_layers(tmp_path: Path) -> None:
    plans = [LoopPlan.parse(plan) for plan in ("1x1", "1x8", "2x4", "8x1")]
    curve = {"1 operation": Spread(90, 80, 95), "2 operations": Spread(50, 50, 50)}
    texts = is_drawn(draw_by_difficulty(dict.fromkeys(plans, curve), tmp_path), "difficulty")
    assert [text for text in texts if text.endswith("looped")] == ["1 layer, looped", "2 layers, looped"]
    assert [texts.count(plan.typography) for plan in plans] == [1, 1, 1, 2]  # the last for comparison in both
    assert "operations in the answer (vertical bars: range over seeds)" in texts


@pytest.mark.parametrize("plan", ["1x4", "4x1"])
def test_the_difficulty_of_one_row_is_drawn_alone(plan: str, tmp_path: Path) -> None:
    curve = {"2 needed": Spread(90, 90, 90)}
    texts = is_drawn(draw_by_difficulty({LoopPlan.parse(plan): curve}, tmp_path), "difficulty")
    assert "statements that the answer needs" in texts


def test_every_exit_rule_has_words(tmp_path: Path) -> None:
    curves = {name: [(1.0, 20.0), (3.0, 80.0)] for name in ("fixed", *THRESHOLDS)}
    texts = is_drawn(draw_exit_curve(curves, "accuracy, %", tmp_path), "exit")
    assert sum(text.startswith(("until ", "the same number")) for text in texts) == len(curves)


def test_groups_and_tasks_of_an_isoplot_have_words(tmp_path: Path) -> None:
    scores = dict.fromkeys(
        ["tydiqa_goldp", *GROUPS, *(name for name, task in TASKS.items() if task.data is None)], 50.0
    )
    points = [IsoPoint(name, fraction, 3 - fraction, scores) for name in ("Base", "Loop") for fraction in (0.5, 1.0)]
    texts = is_drawn(draw_isoplot(points, fit_isoplot(points), "score, %", tmp_path), "isoplot")
    assert all(metric_in_words(name) in " ".join(texts) for name in scores)


def test_metrics_of_the_scaling_law_have_words(tmp_path: Path) -> None:
    metrics = {"open_book/bits_per_byte": 2.0, "assignment_math_0": 50.0}
    plans = [LoopPlan.parse(plan) for plan in ("4x1", "4x2", "8x1", "4x3", "12x1")]
    points = [Point(f"{plan.typography}", plan, metrics) for plan in plans]
    series = series_of(points)
    texts = is_drawn(draw_scaling(series, [fit_depth_law(series, one) for one in metrics], None, tmp_path), "scaling")
    assert all(metric_in_words(name) in " ".join(texts) for name in metrics)


def sheet(*rows: list[Cell], columns: int = 2) -> Sheet:
    lines = [Line(f"Base ({i}⊗1)", False, 1, 1, cells, None, 1, [1], [None], 1.0) for i, cells in enumerate(rows)]
    names = [f"n={i}" for i in range(columns)]
    return Sheet("a table", names, lines, [], in_words=tuple(f"{i} operands" for i in range(columns)))


def test_a_column_without_results_is_not_drawn(tmp_path: Path) -> None:
    texts = is_drawn(draw_sheet(sheet([Cell.of([30.0], 40.0), Cell.of([], 50.0)]), tmp_path), "table")
    assert "0 operands" in texts
    assert "1 operands" not in texts
    assert "accuracy, % (bar and number: ours; tick: the paper's)" in texts
    assert draw_sheet(sheet([Cell.of([], 40.0)], columns=1), tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_a_row_without_results_is_not_drawn(tmp_path: Path) -> None:
    rows = [[Cell.of([30.0], 40.0), Cell.of([], 50.0)], [Cell.of([], 41.0), Cell.of([], 51.0)]]
    texts = is_drawn(draw_sheet(sheet(*rows), tmp_path), "table")
    assert "Base (0⊗1)" in texts
    assert "Base (1⊗1)" not in texts


def test_every_panel_has_the_numbers_of_its_own_axis(tmp_path: Path) -> None:
    one = sheet([Cell.of([float(i)], None) for i in range(1, 9)], columns=8)
    tops = (1.0, 3.0, 20.0, 100.0, 4.0, 6.0, 100.0, 100.0)
    texts = is_drawn(draw_sheet(replace(one, tops=tops, unit=""), tmp_path), "table")
    assert {"0.25", "3", "20", "4", "6"} <= set(texts)
    assert texts.count("0") == 8
    assert texts.count("100") == 3
    assert texts[-1] == "bar and number: ours"


def test_gaps_beyond_the_axis_have_arrows_and_undefined_ones_no_row(tmp_path: Path) -> None:
    gaps = {
        "within": Gap(80.0, Interval(70.0, 90.0), ""),
        "a wide one": Gap(120.0, Interval(-400.0, 2200.0), ""),
        "far off": Gap(554.0, None, ""),
        "none": Gap(None, None, "no gap: both baselines have 5"),
    }
    texts = is_drawn(draw_gaps(gaps, ("(4⊗1)", "(4⊗6)", "(24⊗1)"), tmp_path), "gap")
    assert {"within", "a wide one", "far off", "80", "120", "554", "(4⊗1)", "(24⊗1)"} <= set(texts)
    assert "none" not in texts
    places = [int(text.replace("−", "-")) for text in texts if re.fullmatch(r"−?\d+", text)]
    assert max(place for place in places if place != 554) <= 250
    assert draw_gaps({"none": gaps["none"]}, ("a", "b", "c"), tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_differences_have_a_panel_for_each_unit(tmp_path: Path) -> None:
    found = {
        "score": {"SVAMP": Difference(2.0, Interval(-1.0, 5.0)), "DROP": Difference(1.0, None)},
        "bits": {"SVAMP": Difference(-0.1, Interval(-0.15, -0.05))},
        "none": {},
    }
    texts = is_drawn(draw_differences(found, "(4⊗1)", "(4⊗6)", tmp_path), "difference")
    assert {"(4⊗6) less (4⊗1)", "score", "bits", "DROP"} <= set(texts)
    assert texts.count("SVAMP") == 2
    assert "none" not in texts
    assert draw_differences({"none": {}}, "a", "b", tmp_path / "none") == []


def test_guessing_is_named_beside_the_curves(tmp_path: Path) -> None:
    plans = {"iso_param": "1x1", "looped": "1x4", "iso_flop": "4x1"}
    curve = [(50, 0.23), (100, 0.25)]
    rows = {role: TrainedModel(LoopPlan.parse(plan), 10, 10, 0.25, 100, 1.0, curve) for role, plan in plans.items()}
    is_drawn(draw_curves(Comparison(**rows), 0.25, tmp_path), "curves")
    drawn = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    (ours,) = re.findall(r"translate\(([\d.]+) [\d.]+\)\">Loop", drawn)  # of two lines, which have no x
    assert re.findall(r'x="([\d.]+)"[^>]*>guessing<', drawn) == [ours]


def test_heatmaps_say_what_their_axes_are(tmp_path: Path) -> None:
    texts = is_drawn(draw_heatmaps({"a run": {"query": torch.eye(3)}}, tmp_path), "similarity")
    assert texts.count("layer") == 2
    assert "a run" in texts


def test_what_is_missing_or_varies_is_said(tmp_path: Path) -> None:
    rows = [
        [Cell.of([30.0], None, every=(10.0, 30.0)), Cell.of([5.0], None)],
        [Cell.of([], None), Cell.of([5.0], None)],
    ]
    texts = is_drawn(draw_sheet(sheet(*rows), tmp_path), "table")
    key = " ".join(texts)  # of several lines
    assert "line: range of all seeds of the row" in key
    assert "–: not measured" in key
    assert "tick" not in key


def test_a_trace_is_drawn_whole(tmp_path: Path) -> None:
    trace = Trace("Sums & more", ("3", "4", "5"), (("start", ("3", "4", "5")), ("loop 1", ("3", "7", "9"))))
    texts = is_drawn(draw_trace(trace, tmp_path, "sums-1"), "sums-1")
    assert texts[0] == "Sums & more"
    for cell in ("start", "loop 1", "7", "9", "tinted and bold: what differs from the row above"):
        assert cell in texts


def test_a_figure_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    figure, _ = panels(1)
    with pytest.raises(Exception, match=r"cannot write .*file"):
        write_figure(figure, tmp_path / "file", "loops")
