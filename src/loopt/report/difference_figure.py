"""The figure of how much more one model scores than another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopt.analysis.difference import Difference
from loopt.report.figures import BLUE, FAINT, MUTED, in_style, require_matplotlib, write_figure


@in_style
def draw_differences(
    of_unit: Mapping[str, Mapping[str, Difference]], base: str, model: str, folder: Path
) -> list[Path]:
    """Draws the differences with their intervals, filled where they are beyond noise, in a panel for each unit, as
    difference.svg and difference.png. Returns no files where there are none."""
    drawn = {unit: rows for unit, rows in of_unit.items() if rows}
    if not drawn:
        return []
    require_matplotlib()
    from matplotlib.figure import Figure

    heights = [0.9 + 0.24 * len(rows) for rows in drawn.values()]
    figure = Figure(figsize=(6.6, sum(heights)), layout="constrained")
    figure.suptitle(f"{model} less {base}", x=0, ha="left", fontsize=10)
    grid = figure.add_gridspec(len(drawn), 1, height_ratios=heights)
    for place, (unit, rows) in enumerate(drawn.items()):
        _draw_panel(figure.add_subplot(grid[place]), rows, unit)
    return write_figure(figure, folder, "difference")


def _draw_panel(axes: Any, rows: Mapping[str, Difference], unit: str) -> None:
    axes.axvline(0, color=MUTED, linestyle="--", linewidth=1, zorder=0)
    for row, difference in enumerate(rows.values()):
        axes.axhline(row, color=FAINT, linewidth=0.5, zorder=0)
        if difference.interval is not None:
            axes.plot(difference.interval, [row, row], color=BLUE, marker="|", markersize=6)
        face = BLUE if difference.beyond_noise else "white"
        axes.plot([difference.value], [row], marker="o", color=BLUE, markerfacecolor=face)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.tick_params(axis="y", length=0)
    axes.set(xlabel=unit, ylim=(len(rows) - 0.4, -0.7))
