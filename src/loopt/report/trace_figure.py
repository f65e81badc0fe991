"""The figure of a proof's trace: what each position holds after each loop."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loopt.report.figures import FAINT, INK, MUTED, PAPER, in_style, require_matplotlib, write_figure
from loopt.report.proofs import bands_of, column_width, label_width
from loopt.theory.proof import Trace

CHANGED = "#cfe5f3"
WIDEST = 130  # characters in a line
CHARACTER, LINE = 0.083, 0.28  # the width of a character and the height of a line, in inches
FONT = {"family": "monospace", "fontsize": 9, "va": "center"}


@in_style
def draw_trace(trace: Trace, folder: Path, name: str) -> list[Path]:
    """Draws a trace as a grid, as NAME.svg and NAME.png. Cells that differ from the row above are bold on a tint."""
    require_matplotlib()
    from matplotlib.figure import Figure

    bands, label = bands_of(trace, WIDEST), label_width(trace) + 2
    widest = max(sum(_widths(trace, band)) for band in bands)
    across = max(label + widest + 1, 40)
    title = textwrap.wrap(trace.title, across)
    down = 0.8 * len(title) + len(bands) * (len(trace.rows) + 1) + (len(bands) - 1) + 1.6
    figure = Figure(figsize=(across * CHARACTER, down * LINE))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, across), ylim=(down, 0))
    axes.axis("off")
    for line, text in enumerate(title):
        axes.text(1, 0.8 * line + 0.7, text, weight="bold", fontsize=9, va="center")
    y = 0.8 * len(title) + 0.4
    for band in bands:
        _draw_band(axes, trace, band, label, y)
        y += len(trace.rows) + 2
    axes.text(label, y - 0.45, "tinted and bold: what differs from the row above", fontsize=8, va="center", color=MUTED)
    return write_figure(figure, folder, name)


def _widths(trace: Trace, band: Sequence[int]) -> list[int]:
    return [column_width(trace, column) + 2 for column in band]


def _draw_band(axes: Any, trace: Trace, band: Sequence[int], left: float, top: float) -> None:
    from matplotlib.patches import Rectangle

    above = trace.columns
    for row, (name, cells) in enumerate([("", trace.columns), *trace.rows]):
        middle, x = top + row + 0.5, left
        axes.text(left - 1, middle, name, ha="right", color=MUTED, **FONT)
        for column, wide in zip(band, _widths(trace, band), strict=True):
            changed = row > 1 and cells[column] != above[column]
            if row:
                tint = CHANGED if changed else PAPER
                axes.add_patch(Rectangle((x, top + row), wide, 1, facecolor=tint, edgecolor=FAINT, linewidth=0.6))
            color, weight = (MUTED if row == 0 else INK), ("bold" if changed else "normal")
            axes.text(x + wide / 2, middle, cells[column], ha="center", color=color, weight=weight, **FONT)
            x += wide
        above = cells
