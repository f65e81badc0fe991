"""A proof as tables of sizes and checks, and its traces as text and pictures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loopt.files import explain_os_errors
from loopt.report.curves import require_matplotlib
from loopt.theory.learned import HopComparison
from loopt.theory.proof import Check, Proof, Size, Trace

CHANGED, SAME = "#cfe3f4", "#ffffff"


def proof_report(proof: Proof) -> RenderableType:
    """Returns what ``loopt prove`` prints about one theorem."""
    notes = Table.grid(padding=(0, 1))
    for note in proof.notes:
        notes.add_row("-", note)
    return Group(Text(proof.title, style="bold"), _sizes(proof.sizes), _checks(proof.checks), notes, Text())


def _sizes(sizes: Sequence[Size]) -> Table:
    table = Table()
    for column, justify in (("size", "left"), ("claimed", "right"), ("actual", "right"), ("", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for size in sizes:
        claimed = "-" if size.claimed is None else str(size.claimed)
        table.add_row(size.name, claimed, str(size.actual), size.note, style="" if size.as_claimed else "yellow")
    return table


def _checks(checks: Sequence[Check]) -> Table:
    table = Table()
    columns = ["check", "inputs", "wrong", "seconds", "exact"]
    if any(check.worst is not None for check in checks):
        columns.insert(3, "largest error")
    for column in columns:
        table.add_column(column, justify="left" if column == "check" else "right")
    for check in checks:
        cells = {
            "check": check.what,
            "inputs": f"{check.inputs:,}",
            "wrong": f"{check.wrong:,}",
            "largest error": "" if check.worst is None else f"{check.worst:.1e}",
            "seconds": f"{check.seconds:.1f}",
            "exact": _verdict(check.exact),
        }
        table.add_row(*(cells[column] for column in columns), style="" if check.exact else "bold red")
    return table


def summary(proofs: dict[str, Proof], seconds: dict[str, float]) -> Table:
    """Returns a table with a row for each theorem; ``seconds`` include building and tracing."""
    table = Table(title="All theorems", title_justify="left", title_style="bold")
    for column in ("theorem", "checks", "inputs", "wrong", "exact", "seconds"):
        table.add_column(column, justify="left" if column == "theorem" else "right")
    for name, proof in proofs.items():
        inputs, wrong = sum(check.inputs for check in proof.checks), sum(check.wrong for check in proof.checks)
        counts = (str(len(proof.checks)), f"{inputs:,}", f"{wrong:,}")
        style = "" if proof.exact else "bold red"
        table.add_row(name, *counts, _verdict(proof.exact), f"{seconds[name]:.1f}", style=style)
    return table


def _verdict(exact: bool) -> str:
    return "yes" if exact else "NO"


def trace_text(trace: Trace, width: int) -> str:
    """Returns a trace as lines of at most ``width`` characters, where its cells allow; further columns follow below.

    >>> trace = Trace("Sums", ("3", "4", "5"), (("loop 1", ("3", "7", "9")), ("loop 2", ("3", "7", "12"))))
    >>> print(trace_text(trace, width=80))
    Sums
            3  4   5
    loop 1  3  7   9
    loop 2  3  7  12
    """
    bands = []
    for at in _bands(trace, width):
        widths = [_column_width(trace, column) for column in at]
        lines, label = [("", trace.columns), *trace.rows], _label_width(trace)
        bands.append(
            "\n".join(
                "  ".join([name.ljust(label), *(cells[i].rjust(w) for i, w in zip(at, widths, strict=True))]).rstrip()
                for name, cells in lines
            )
        )
    return "\n\n".join([f"{trace.title}\n{bands[0]}", *bands[1:]])


def _bands(trace: Trace, width: int) -> list[range]:
    """Cuts the columns into bands that fit beside the rows' names, with equally many columns where those fit too."""
    room = width - _label_width(trace)
    widths = [2 + _column_width(trace, column) for column in range(len(trace.columns))]
    starts, used = [0], 0
    for column, wide in enumerate(widths):
        if used + wide > room and column > starts[-1]:  # a column too wide for any band has one to itself
            starts.append(column)
            used = 0
        used += wide
    size = math.ceil(len(widths) / len(starts))
    even = range(0, len(widths), size)
    if all(sum(widths[start : start + size]) <= room for start in even):
        starts = list(even)
    return [range(*ends) for ends in itertools.pairwise([*starts, len(widths)])]


def _label_width(trace: Trace) -> int:
    return max(len(name) for name, _ in trace.rows)


def _column_width(trace: Trace, column: int) -> int:
    return max(len(cells[column]) for cells in (trace.columns, *(cells for _, cells in trace.rows)))


FIGURE_WIDTH = 130
"""The characters in a line of a figure."""
CHARACTER, LINE = 0.083, 0.3
"""The width of a character and the height of a line in a figure, in inches."""


def draw_trace(trace: Trace, png: Path) -> None:
    """Draws a trace as a grid, in which cells that differ from the row above are tinted."""
    require_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    bands, label = _bands(trace, FIGURE_WIDTH), _label_width(trace) + 2
    widest = max(sum(_column_width(trace, column) + 2 for column in band) for band in bands)
    across, down = max(label + widest, len(trace.title)) + 1, 1.4 + len(bands) * (len(trace.rows) + 2)
    figure = Figure(figsize=(across * CHARACTER, down * LINE))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, across), ylim=(down, 0))
    axes.axis("off")
    font: dict[str, Any] = {"family": "monospace", "fontsize": 9, "va": "center"}
    axes.text(1, 0.75, trace.title, weight="bold", **{**font, "family": "sans-serif"})
    y = 1.4  # below the title
    for band in bands:
        above = trace.columns
        for row, (name, cells) in enumerate([("", trace.columns), *trace.rows]):
            axes.text(label - 1, y + 0.5, name, ha="right", color="#5f6368", **font)
            x = label
            for column in band:
                wide = _column_width(trace, column) + 2
                if row:
                    tint = CHANGED if row > 1 and cells[column] != above[column] else SAME
                    axes.add_patch(Rectangle((x, y), wide, 1, facecolor=tint, edgecolor="#bbbbbb", linewidth=0.6))
                weight = "bold" if row == 0 else "normal"
                axes.text(x + wide / 2, y + 0.5, cells[column], ha="center", weight=weight, **font)
                x += wide
            above, y = cells, y + 1
        y += 1
    with explain_os_errors(f"write {png}"):
        figure.savefig(png, dpi=130)


def comparison_table(comparison: HopComparison, run: str) -> Table:
    """Returns a table of how often the answer after each loop is right for each hop count, built model first."""
    title = f"Accuracy by hop count, if the model stopped after each loop; {comparison.examples} examples"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("after")
    for hops in comparison.hops:
        table.add_column(f"{hops} hop{'s' * (hops > 1)}", justify="right")
    for name, model in (("built", comparison.built), (run, comparison.learned)):
        for after in model:
            best = max(after.accuracies)
            cells = [Text(f"{a:.0%}", style="bold" if a == best else "") for a in after.accuracies]
            table.add_row(f"{name}, loop {after.loops}", *cells)
        table.add_section()
    return table
