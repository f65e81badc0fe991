"""The page is self-contained, and text on it is escaped."""

from __future__ import annotations

from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

from loopt import LoopPlan
from loopt.analysis import LoopAnswer
from loopt.report.comparison import Comparison, TrainedModel
from loopt.report.curves import draw_curves, spread_labels
from loopt.report.page import Solved, render_page

VOID = {"meta", "br", "img", "hr", "input"}
NASTY = """<script>alert("1 & 2")</script>'"""


class Checked(HTMLParser):
    """Parses a page, checks that its tags are balanced, and keeps its text and what it would load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.handle_startendtag(tag, attributes)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("src", "href", "xlink:href", "data") and not (value or "").startswith("#"):
                self.loads.append(f"{tag} {name}={value}")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if self.open[-1:] != ["style"] else ""


def comparison(*accuracies: float) -> Comparison:
    plans = [LoopPlan.parse(plan) for plan in ("2x1", "2x3", "6x1")]
    rows = [
        TrainedModel(plan, 1000 + i, 2000 + i, accuracy, 300, 12.0, [(100, 0.25), (300, accuracy)])
        for i, (plan, accuracy) in enumerate(zip(plans, accuracies, strict=True))
    ]
    return Comparison(*rows)


def page(tmp_path: Path, *accuracies: float) -> str:
    solved = Solved(
        drawing=NASTY,
        words=["a", "<"],
        right=["", "&"],
        answers=[LoopAnswer(loop + 1, [[0], [loop]], [[0.5], [0.75]], [0.1, 0.2]) for loop in range(2)],
        vocabulary=("<", "&"),
        accuracy_by_loop=[0.125, 1.0],
        examples=8,
    )
    compared = comparison(*accuracies)
    svg = draw_curves(compared, 0.25, tmp_path / "curves.png")
    return render_page(NASTY, f"claim {NASTY}", compared, svg, solved, [f"fact {NASTY}"])


def test_text_is_text_and_nothing_is_loaded(tmp_path: Path) -> None:
    read = Checked(page(tmp_path, 0.3, 0.9, 0.8))
    assert read.text.count(NASTY) == 5  # title and heading, claim, drawing, fact
    assert not read.loads
    assert not {"script", "link", "iframe", "img"} & set(read.tags)


def test_the_figures_are_there(tmp_path: Path) -> None:
    read = Checked(page(tmp_path, 0.3, 0.9, 0.8))
    for figure in ("Base (2⊗1)", "Loop (2⊗3)", "Base (6⊗1)", "30.0%", "90.0%", "80.0%", "120", "12.5% right", "100.0%"):
        assert figure in read.text


def test_right_and_wrong_are_told_apart(tmp_path: Path) -> None:
    shown = page(tmp_path, 0.3, 0.9, 0.8)
    assert '<td class="wrong" title="75% sure">&lt;</td>' in shown
    assert '<td class="right" title="75% sure">&amp;</td>' in shown
    assert shown.count('<td title="50% sure">') == 2  # where nothing is asked, nothing is right or wrong


def test_no_gap_between_equal_baselines(tmp_path: Path) -> None:
    assert "<td>-</td>" in page(tmp_path, 0.5, 0.6, 0.5)


def test_the_same_results_give_the_same_page(tmp_path: Path) -> None:
    assert page(tmp_path, 0.3, 0.9, 0.8) == page(tmp_path, 0.3, 0.9, 0.8)


def test_labels_keep_apart() -> None:
    for heights in ([30.0, 30.0, 30.0], [99.0, 100.0, 98.0], [25.0, 99.0, 26.0], [0.0, 50.0, 100.0]):
        moved = spread_labels(heights, 13.0)
        ordered = sorted(moved)
        assert all(b - a >= 13 for a, b in pairwise(ordered))
        assert max(moved) == max(heights)
    assert spread_labels([0.0, 50.0, 100.0], 13.0) == [0.0, 50.0, 100.0]
