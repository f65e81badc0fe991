"""The demo's page: one self-contained HTML file, for a desk and a phone, by day and by night."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from loopt.analysis import LoopAnswer
from loopt.report.comparison import COLUMNS, Comparison, cells
from loopt.report.page_style import STYLE, colored_by_page
from loopt.report.sketch import draw_loop_sketch

MARKS = {"right": "✓", "wrong": "✗"}


@dataclass(frozen=True)
class Solved:
    """One example, and what the looped model would answer at each position after each loop."""

    drawing: str
    words: list[str]
    """The text of each token."""
    right: list[str]
    """The right answer at each position; empty where nothing is asked."""
    answers: list[LoopAnswer]
    vocabulary: tuple[str, ...]
    accuracy_by_loop: list[float]
    """Accuracy on the first ``examples`` of the test split, if the model stopped after each loop."""
    examples: int


@dataclass(frozen=True)
class Onwards:
    """Where to go from the page."""

    commands: Sequence[tuple[str, str]]
    """(what one sees, the command)"""
    links: Sequence[tuple[str, str]]
    """(what one reads, its address)"""


def render_page(
    title: str,
    claim: str,
    comparison: Comparison,
    curves_svg: str,
    solved: Solved,
    facts: Sequence[str],
    onwards: Onwards,
) -> str:
    """Returns the page. ``curves_svg`` is a figure as draw_curves writes it; all else is text, which is escaped."""
    once, deep = comparison.iso_param, comparison.iso_flop
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style>
<h1>{escape(title)}</h1>
<figure>{draw_loop_sketch(comparison.looped.plan, "letters", "answer")}
<figcaption>{escape(comparison.looped.name)}: what comes out goes in again. {escape(once.name)} runs once through the
same layers; {escape(deep.name)} is as deep as the loop, with weights of its own in every layer.</figcaption></figure>
<p>{escape(claim)}</p>
<div class="wide">{_figures(comparison)}</div>
<p class="note">FLOPs are those of one forward pass over one sequence. % gap is the share of the way from the first row
to the last that looping covers.</p>
<h2>Accuracy while they train</h2>
{colored_by_page(curves_svg)}
<h2>One instance, loop by loop</h2>
<p>The first test example. A hop goes from a letter to the last earlier place with the same letter, and on to the letter
after it.</p>
<pre>{escape(solved.drawing)}</pre>
<p>What the looped model would answer at each position if it stopped after each loop: {MARKS["right"]} where that is the
right answer, {MARKS["wrong"]} where it is not. Beside each loop is the share of {solved.examples:,} test examples that
would then be right, for which only the last position counts: the column in a frame. Tap an answer, or hover over it, to
see how sure the model is of it.</p>
<div class="wide">{_loops(solved)}</div>
<p class="note">⊥ is the answer where the hops run out: a letter on the way has not been there before.</p>
<h2>How this was measured</h2>
<ul>{"".join(f"<li>{escape(fact)}</li>" for fact in facts)}</ul>
<h2>What next</h2>
<ul>{_onwards(onwards)}</ul>
</html>
"""


def _figures(comparison: Comparison) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
    body = "".join(
        f"<tr{' class=looped' if row is comparison.looped else ''}><th>{escape(name)}</th>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in figures)
        + "</tr>"
        for row, (name, *figures) in zip(comparison.rows, cells(comparison), strict=True)
    )
    return f'<table class="figures"><tr>{head}</tr>{body}</table>'


def _loops(solved: Solved) -> str:
    rows = [_row("sequence", solved.words)]
    last = len(solved.words) - 1
    for answer, accuracy in zip(solved.answers, solved.accuracy_by_loop, strict=True):
        cells = []
        for place, (choice, probability) in enumerate(zip(answer.choices, answer.probabilities, strict=True)):
            word, right = solved.vocabulary[choice[0]], solved.right[place]
            verdict = "" if not right else "right" if word == right else "wrong"
            mark = f'<span class="mark">{MARKS[verdict]}</span>' if verdict else ""
            # any cell takes a tap, but on its way through the page the tab key stops at those that are scored alone
            tab = 0 if place == last else -1
            named = f' class="{verdict}"' if verdict else ""
            sure = f'tabindex="{tab}" data-sure="{probability[0]:.0%} sure"'
            cells.append(f"<td{named} {sure}>{escape(word)}{mark}</td>")
        heading = f"loop {answer.loops} <small>{accuracy:.1%} right</small>"
        rows.append(f"<tr><th>{heading}</th>{''.join(cells)}</tr>")
    rows.append(_row("right answer", solved.right))
    return f'<table class="loops">{"".join(rows)}</table>'


def _row(heading: str, words: list[str]) -> str:
    return f"<tr><th>{heading}</th>{''.join(f'<td>{escape(word)}</td>' for word in words)}</tr>"


def _onwards(onwards: Onwards) -> str:
    commands = [f"<li>{escape(what)}: <code>{escape(command)}</code></li>" for what, command in onwards.commands]
    links = [f'<li><a href="{escape(address)}">{escape(what)}</a></li>' for what, address in onwards.links]
    return "".join([*commands, *links])
