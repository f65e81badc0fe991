"""The figure of quality against mean loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from loopt.report.figures import FAINT, in_style, panels, style_of, write_figure

RULES = {
    "fixed": "the same number for every token",
    "change": "until the state changes little",
    "kl": "until the next token's distribution changes little",
    "entropy": "until the next token is clear",
    "gate": "until a learned gate says so",
}
"""What the exit rules are called in the figure."""


@in_style
def draw_exit_curve(curves: Mapping[str, Sequence[tuple[float, float]]], quality: str, folder: Path) -> list[Path]:
    """Draws a curve of (mean loops, quality) for each rule, as exit.svg and exit.png."""
    figure, (axes,) = panels(1, 6.4, 4.0)
    axes.grid(color=FAINT, linewidth=0.5)
    for index, (name, points) in enumerate(curves.items()):
        loops, values = zip(*sorted(points), strict=True)
        axes.plot(loops, values, label=RULES[name], **style_of(index))
    axes.set(xlabel="mean number of loops of a decoded token", ylabel=quality)
    figure.legend(loc="outside lower center", ncols=2)  # curves end anywhere, so labels there would collide
    return write_figure(figure, folder, "exit")
