"""The figure of what was measured while runs trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from loopt.report.figures import in_style, label_ends, panels, style_of, write_figure

MOST_LABELS = 12
"""Curves that have room for their names at their ends."""


@in_style
def draw_training_curves(
    curves: Mapping[str, Sequence[tuple[float, float]]], quality: str, folder: Path, name: str = "training"
) -> list[Path]:
    """Draws for each run its quality against training steps, as NAME.svg and NAME.png."""
    figure, (axes,) = panels(1, 7.0, max(3.4, 0.25 * min(len(curves), MOST_LABELS)))
    ends = []
    for index, (run, points) in enumerate(curves.items()):
        style = style_of(index)
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, **style)
        ends.append((steps[-1], values[-1], run, style["color"]))
    axes.set(xlabel="training steps", ylabel=quality)
    axes.set_xlim(left=0)
    if quality.endswith("%"):
        axes.set_ylim(0, 104)
    if len(curves) <= MOST_LABELS:
        label_ends(axes, ends)
    return write_figure(figure, folder, name)
