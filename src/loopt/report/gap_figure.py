"""The figure of % Gap by metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from loopt.analysis.gap import Gap
from loopt.report.figures import BLUE, MUTED, in_style, in_words, panels, write_figure


@in_style
def draw_gaps(gaps: Mapping[str, Gap], models: Sequence[str], folder: Path) -> list[Path]:
    """Draws where a looped model stands between its baselines, a line for each metric, as gap.svg and gap.png. The
    three names are those of base, looped and deep."""
    base, looped, deep = models
    figure, (axes,) = panels(1, 6.6, 1.0 + 0.36 * len(gaps))
    for place, name in ((0, base), (100, deep)):
        axes.axvline(place, color=MUTED, linestyle="--", linewidth=1)
        top = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom"}
        axes.text(place, 1.01, name, **top)
    for row, gap in enumerate(gaps.values()):
        if gap.percent is None:
            axes.text(50, row, gap.undefined.partition(":")[0], ha="center", va="center", fontsize=8, style="italic")
            continue
        if gap.interval:
            axes.plot(gap.interval, [row, row], color=BLUE, marker="|", markersize=7)
        axes.plot([gap.percent], [row], marker="o", markersize=6, color=BLUE)
        above = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center", "fontsize": 8}
        axes.annotate(f"{gap.percent:.0f}", (gap.percent, row), **above)
    axes.set_yticks(range(len(gaps)), [in_words(name) for name in gaps])
    axes.set(xlabel=f"% gap of {looped}: its way from {base} to {deep}", ylim=(len(gaps) - 0.4, -0.7))
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -12), max(high, 112))
    return write_figure(figure, folder, "gap")
