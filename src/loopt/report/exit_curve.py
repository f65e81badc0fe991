"""The figure of quality against loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from loopt.files import explain_os_errors
from loopt.report.curves import require_matplotlib

MARKS = ("o", "s", "^", "D", "v")


def draw_exit_curve(curves: Mapping[str, Sequence[tuple[float, float]]], quality: str, path: Path) -> None:
    """Draws a curve of (mean loops, quality) for each rule; markers tell them apart without color."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for mark, (name, points) in zip(MARKS, curves.items(), strict=False):
        ordered = sorted(points)
        fixed = name == "fixed"
        axes.plot(
            [loops for loops, _ in ordered],
            [value for _, value in ordered],
            marker=mark,
            linestyle="--" if fixed else "-",
            color="#80868b" if fixed else None,
            markersize=5,
            label="fixed loops" if fixed else name,
        )
    axes.set(xlabel="mean loops of a decoded token", ylabel=quality)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    with explain_os_errors(f"write {path}"):
        figure.savefig(path, dpi=140)
