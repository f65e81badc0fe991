"""The page is self-contained, and text on it is escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from look import contrast
from loopt import LoopPlan
from loopt.analysis import LoopAnswer
from loopt.report.comparison import Comparison, TrainedModel
from loopt.report.curves import draw_curves
from loopt.report.figures import BLUE, INK, VERMILION
from loopt.report.page import Onwards, Solved, render_page

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
        self.links: list[str] = []
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
                (self.links if tag == "a" else self.loads).append(str(value))

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
    svg, _ = draw_curves(compared, 0.25, tmp_path)
    onwards = Onwards([(NASTY, f"loopt {NASTY}")], [(NASTY, f"https://example.org/?{NASTY}")])
    return render_page(NASTY, f"claim {NASTY}", compared, svg.read_text(), solved, [f"fact {NASTY}"], onwards)


def test_text_is_text_and_nothing_is_loaded(tmp_path: Path) -> None:
    read = Checked(page(tmp_path, 0.3, 0.9, 0.8))
    assert read.text.count(NASTY) == 8  # title and heading, claim, drawing, fact, what next: a command and a link
    assert read.links == [f"https://example.org/?{NASTY}"]
    assert not read.loads
    assert not {"script", "link", "iframe", "img"} & set(read.tags)


def test_the_figures_are_there(tmp_path: Path) -> None:
    read = Checked(page(tmp_path, 0.3, 0.9, 0.8))
    for figure in ("Base (2⊗1)", "Loop (2⊗3)", "Base (6⊗1)", "30.0%", "90.0%", "80.0%", "120", "12.5% right", "100.0%"):
        assert figure in read.text


def test_right_and_wrong_are_told_apart(tmp_path: Path) -> None:
    shown = page(tmp_path, 0.3, 0.9, 0.8)
    wrong, right = (f'<td class="{verdict}" tabindex="0" data-sure="75% sure">' for verdict in ("wrong", "right"))
    assert f'{wrong}&lt;<span class="mark">✗</span></td>' in shown
    assert f'{right}&amp;<span class="mark">✓</span></td>' in shown
    # where nothing is asked, nothing is right or wrong
    assert shown.count('<td tabindex="-1" data-sure="50% sure">&lt;</td>') == 2


def test_no_gap_between_equal_baselines(tmp_path: Path) -> None:
    assert "<td>-</td>" in page(tmp_path, 0.5, 0.6, 0.5)


def test_the_same_results_give_the_same_page(tmp_path: Path) -> None:
    assert page(tmp_path, 0.3, 0.9, 0.8) == page(tmp_path, 0.3, 0.9, 0.8)


def test_the_page_explains_itself(tmp_path: Path) -> None:
    shown = page(tmp_path, 0.3, 0.9, 0.8)
    for said in ("⊥ is the answer where", "✓ where that is the", "3 times through the same weights", "Tap an answer"):
        assert said in shown
    for rule in (":is(:hover, :focus)::after { content: attr(data-sure)", "td:last-child { position: sticky; right: 0"):
        assert rule in shown


def test_every_color_has_a_shade_for_the_night(tmp_path: Path) -> None:
    shown = page(tmp_path, 0.3, 0.9, 0.8)
    style, _, body = shown.partition("</style>")
    day, _, night = style.partition("@media (prefers-color-scheme: dark)")
    used = set(re.findall(r"var\(--(\w+)\)", shown))
    assert {"page", "ink", "muted", "looped", "deep", "right", "wrong"} <= used
    for scheme in (day, night):
        assert used == set(re.findall(r"--(\w+): #", scheme))
    assert not any(color in body for color in (BLUE, INK, VERMILION, "#ffffff"))


def test_text_on_the_page_can_be_read_by_day_and_by_night(tmp_path: Path) -> None:
    style = page(tmp_path, 0.3, 0.9, 0.8).partition("</style>")[0]
    for scheme in style.split("@media (prefers-color-scheme: dark)")[:2]:
        shade = dict(re.findall(r"--(\w+): (#\w{6})", scheme))
        pairs = [(text, "page") for text in ("ink", "muted", "looped", "deep")]
        pairs += [("ink", ground) for ground in ("soft", "tint", "right", "wrong")] + [
            ("yes", "right"),
            ("no", "wrong"),
        ]
        for text, ground in pairs:
            assert contrast(shade[text], shade[ground]) >= 4.5, (text, ground)
