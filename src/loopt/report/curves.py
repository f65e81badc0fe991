"""The figure of the demo: accuracy while three models train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loopt.report.comparison import Comparison
from loopt.report.figures import BLUE, INK, MUTED, VERMILION, in_style, label_ends, panels, write_figure

STYLES: dict[str, dict[str, Any]] = {  # the last is drawn on top
    "iso_param": {"color": INK, "linestyle": ":", "marker": "^", "linewidth": 1.4},
    "iso_flop": {"color": VERMILION, "linestyle": "--", "marker": "s", "linewidth": 1.4},
    "looped": {"color": BLUE, "linestyle": "-", "marker": "o", "linewidth": 2.0},
}


@in_style
def draw_curves(comparison: Comparison, chance: float, folder: Path) -> list[Path]:
    """Draws validation accuracy against training steps, as curves.svg and curves.png."""
    figure, (axes,) = panels(1, 5.6, 3.4)
    ends = []
    for role, style in STYLES.items():
        row = getattr(comparison, role)
        steps, accuracies = zip(*row.curve, strict=True)
        percents = [100 * accuracy for accuracy in accuracies]
        axes.plot(steps, percents, **style)
        ends.append((steps[-1], percents[-1], f"{row.name}\n{row.parameters:,} parameters", style["color"]))
    axes.axhline(100 * chance, color=MUTED, linestyle=(0, (1, 3)), linewidth=1)
    ends.append((steps[-1], 100 * chance, "guessing", MUTED))
    axes.set(xlabel="training steps", ylabel="validation accuracy, %", ylim=(0, 104))
    axes.set_xlim(left=0)
    label_ends(axes, ends)
    return write_figure(figure, folder, "curves")
