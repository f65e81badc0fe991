"""The figure of a table: a panel for each column, our number as a bar, the paper's as a tick."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loopt.report.figures import (
    BLUE,
    FAINT,
    INK,
    MUTED,
    VERMILION,
    in_style,
    require_matplotlib,
    title_lines,
    write_figure,
)
from loopt.report.sheet import Cell, Sheet

SIDE_BY_SIDE = 4
CHARACTERS_AN_INCH = 14  # of the key below all panels
BASELINE, TRACK = "#a9b1ba", "#eef0f2"
TICK = {"linestyle": "", "marker": "|", "markersize": 12, "markeredgewidth": 2.2, "color": VERMILION}


@in_style
def draw_sheet(sheet: Sheet, folder: Path, name: str = "table") -> list[Path]:
    """Draws a panel for each column that has numbers of ours, of the rows that have some, as NAME.svg and NAME.png;
    returns no files where there is none. A line over a bar is the range of a row's seeds."""
    lines = [line for line in sheet.lines if not line.derived and any(cell.ours is not None for cell in line.cells)]
    drawn = [i for i in range(len(sheet.columns)) if any(line.cells[i].ours is not None for line in lines)]
    if not drawn:
        return []
    figure, grid = _panels(len(drawn), len(lines))
    places = range(len(lines))
    colors = [BLUE if line.looped else BASELINE for line in lines]
    for axes, column in zip(grid, drawn, strict=True):
        top = sheet.tops[column] if sheet.tops else 100.0
        _draw_column(axes, [line.cells[column] for line in lines], colors, top)
        title = (sheet.in_words or sheet.columns)[column]
        axes.set_title(title_lines(title))
        axes.set_yticks(places, [line.name for line in lines])
        axes.tick_params(axis="y", length=0, labelleft=axes.get_subplotspec().is_first_col())
    grid[0].set_ylim(len(lines) - 0.5, -0.5)
    cells = [line.cells[column] for line in lines for column in drawn]
    key = f"{sheet.unit} ({_key(cells)})" if sheet.unit else _key(cells)
    figure.supxlabel(textwrap.fill(key, int(CHARACTERS_AN_INCH * figure.get_figwidth())), fontsize=9)
    return write_figure(figure, folder, name)


def _panels(count: int, lines: int) -> tuple[Any, list[Any]]:
    """Returns a figure and its axes, which share the rows."""
    require_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    wide = min(count, SIDE_BY_SIDE)
    high = math.ceil(count / wide)
    size = 1.4 + 2.6 * wide, 0.5 + high * (0.75 + 0.27 * lines)
    apart = ConstrainedLayoutEngine(w_pad=0.12)  # so that a number is not taken for the next panel's
    figure = Figure(figsize=size, layout=apart)
    grid: list[Any] = []
    for place in range(count):
        grid.append(figure.add_subplot(high, wide, place + 1, sharey=grid[0] if grid else None))
    return figure, grid


def _draw_column(axes: Any, cells: Sequence[Cell], colors: Sequence[str], top: float) -> None:
    from matplotlib.ticker import MaxNLocator

    places = range(len(cells))
    axes.barh(places, [top] * len(cells), color=TRACK, height=0.66)  # so that a bar of length 0 is seen to be one
    axes.barh(places, [cell.ours or 0.0 for cell in cells], color=colors, height=0.66)
    for place, cell in enumerate(cells):
        if cell.every:
            ends = [min(cell.every), max(cell.every)]
            axes.plot(ends, [place, place], color=INK, linewidth=1.2, marker="|", markersize=5)
        text = "–" if cell.ours is None else f"{cell.ours:.{cell.digits}f}"
        axes.text(1.22 * top, place, text, ha="right", va="center", color=INK, fontsize=8.5)
    if paper := [(cell.paper, place) for place, cell in enumerate(cells) if cell.paper is not None]:
        axes.plot(*zip(*paper, strict=True), clip_on=False, **TICK)
    ticks = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(0, top)
    axes.set(xlim=(0, 1.23 * top), xticks=[tick for tick in ticks if tick <= top])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set(bounds=(0, top), color=FAINT)
    axes.tick_params(axis="x", color=MUTED)


def _key(cells: Sequence[Cell]) -> str:
    """Returns in words what the marks of a figure mean."""
    marks = ["bar and number: ours"]
    if any(cell.every for cell in cells):
        marks = ["bar and number: ours, of the seeds that all rows have", "line: range of all seeds of the row"]
    if any(cell.paper is not None for cell in cells):
        marks.append("tick: the paper's")
    if any(cell.ours is None for cell in cells):
        marks.append("–: not measured")
    return "; ".join(marks)
