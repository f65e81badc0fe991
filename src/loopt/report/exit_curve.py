"""The figure of quality against mean loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from loopt.report.figures import panels, style_of, write_figure


def draw_exit_curve(curves: Mapping[str, Sequence[tuple[float, float]]], quality: str, folder: Path) -> list[Path]:
    """Draws a curve of (mean loops, quality) for each rule, as exit.svg and exit.png."""
    figure, (axes,) = panels(1, 6.4, 4.0)
    for index, (name, points) in enumerate(curves.items()):
        loops, values = zip(*sorted(points), strict=True)
        label = "fixed loops" if name == "fixed" else name
        axes.plot(loops, values, markersize=5, label=label, **style_of(index))
    axes.set(xlabel="mean loops of a decoded token", ylabel=quality)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, handlelength=3.5)
    return write_figure(figure, folder, "exit")
