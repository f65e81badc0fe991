"""The figure of % Gap by metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loopt.analysis.gap import Gap
from loopt.report.figures import BLUE, FAINT, MUTED, PAPER, in_style, panels, write_figure

LEAST, MOST = -50, 250
"""The ends of the axis: one gap that is hardly defined would otherwise squeeze all others."""


@in_style
def draw_gaps(gaps: Mapping[str, Gap], models: Sequence[str], folder: Path) -> list[Path]:
    """Draws where a looped model stands between its baselines, a line for each metric that has a gap, as gap.svg and
    gap.png; returns no files where none has one. The three names are those of base, looped and deep."""
    base, looped, deep = models
    drawn = {name: gap for name, gap in gaps.items() if gap.percent is not None}
    if not drawn:
        return []
    figure, (axes,) = panels(1, 6.6, 1.0 + 0.32 * len(drawn))
    for place, name, side in ((0, base, "right"), (100, deep, "left")):
        axes.axvline(place, color=MUTED, linestyle="--", linewidth=1, zorder=0)
        axes.text(place, 1.01, name, transform=axes.get_xaxis_transform(), ha=side, va="bottom")
    for row, gap in enumerate(drawn.values()):
        axes.axhline(row, color=FAINT, linewidth=0.5, zorder=0)
        _draw_gap(axes, row, gap)
    axes.set_yticks(range(len(drawn)), list(drawn))
    axes.tick_params(axis="y", length=0)
    axes.set(xlabel=f"% gap of {looped}: its way from {base} to {deep}", ylim=(len(drawn) - 0.4, -0.7))
    low, high = axes.get_xlim()
    axes.set_xlim(max(min(low, -12), LEAST - 4), min(max(high, 112), MOST + 4))
    return write_figure(figure, folder, "gap")


def _draw_gap(axes: Any, row: int, gap: Gap) -> None:
    """Draws one gap and its interval, with an arrow for each end that lies beyond the axis."""
    assert gap.percent is not None
    low, high = gap.interval or (gap.percent, gap.percent)
    axes.plot([_clipped(low), _clipped(high)], [row, row], color=BLUE)
    for end in (low, high):
        mark = "<" if end < LEAST else ">" if end > MOST else "|" if gap.interval else ""
        axes.plot([_clipped(end)], [row], color=BLUE, marker=mark, markersize=6)
    shown = _clipped(gap.percent)
    if shown == gap.percent:
        axes.plot([shown], [row], marker="o", markersize=5, color=BLUE)
    side = "left" if gap.percent < LEAST else "right" if gap.percent > MOST else "center"
    above = {"xytext": (0, 4), "textcoords": "offset points", "ha": side, "fontsize": 8, "zorder": 1}
    on_paper = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.2}
    axes.annotate(f"{gap.percent:.0f}", (shown, row), bbox=on_paper, **above)


def _clipped(percent: float) -> float:
    return min(max(percent, LEAST), MOST)
