"""The demo's page: one self-contained HTML file."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from loopt.analysis import LoopAnswer
from loopt.report.comparison import COLUMNS, Comparison, cells

STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; max-width: 46rem; margin: 2.5rem auto; padding: 0 1rem; color: #1c1e21 }
h1 { font-size: 1.6rem; line-height: 1.25 } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } .wide { overflow-x: auto }
.figures td, .figures th { padding: .35rem .8rem; text-align: right; border-bottom: 1px solid #ddd }
.figures th:first-child { text-align: left } tr + tr th { font-weight: inherit }
.figures .looped, .figures .looped th { font-weight: 600; background: #eaf3fb }
th:first-child { position: sticky; left: 0; background: #fff; white-space: nowrap }
pre { background: #f6f7f8; padding: .8rem; overflow-x: auto; font-size: .72rem; line-height: 1.35 }
.loops td, .loops th { padding: .18rem .25rem; text-align: center; font: .82rem ui-monospace, monospace }
.loops th { text-align: right; padding-right: .6rem }
.loops td:last-child { outline: 2px solid #1769aa; outline-offset: -1px }
.right { background: #cfead6 } .wrong { background: #f6d3d0 } svg { width: 100%; height: auto }
small, .note { color: #5f6368 }
@media (max-width: 40rem) { .figures { font-size: .85rem } .figures td, .figures th { padding: .3rem .4rem } }
"""


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


def render_page(
    title: str, claim: str, comparison: Comparison, curves_svg: str, solved: Solved, facts: list[str]
) -> str:
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style>
<h1>{escape(title)}</h1>
<p>{escape(claim)}</p>
<div class="wide">{_figures(comparison)}</div>
<p class="note">FLOPs are those of one forward pass over one sequence. % gap is the share of the way from the first row
to the last that looping covers.</p>
<h2>Accuracy while they train</h2>
{curves_svg}
<h2>One instance, loop by loop</h2>
<p>The first test example. A hop goes from a letter to the last earlier place with the same letter, and on to the letter
after it.</p>
<pre>{escape(solved.drawing)}</pre>
<p>What the looped model would answer at each position if it stopped after each loop, against the answer that is right
there; beside each loop, the share of {solved.examples:,} test examples that would then be right. Only the last position
counts for that. Hover over an answer to see how sure the model is of it.</p>
<div class="wide">{_loops(solved)}</div>
<h2>How this was measured</h2>
<ul>{"".join(f"<li>{escape(fact)}</li>" for fact in facts)}</ul>
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
    for answer, accuracy in zip(solved.answers, solved.accuracy_by_loop, strict=True):
        cells = []
        for choice, probability, right in zip(answer.choices, answer.probabilities, solved.right, strict=True):
            word = solved.vocabulary[choice[0]]
            verdict = "" if not right else f' class="{"right" if word == right else "wrong"}"'
            cells.append(f'<td{verdict} title="{probability[0]:.0%} sure">{escape(word)}</td>')
        heading = f"loop {answer.loops} <small>{accuracy:.1%} right</small>"
        rows.append(f"<tr><th>{heading}</th>{''.join(cells)}</tr>")
    rows.append(_row("right answer", solved.right))
    return f'<table class="loops">{"".join(rows)}</table>'


def _row(heading: str, words: list[str]) -> str:
    return f"<tr><th>{heading}</th>{''.join(f'<td>{escape(word)}</td>' for word in words)}</tr>"
