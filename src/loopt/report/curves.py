"""Figures of accuracy: over training and by difficulty."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loopt.errors import MissingPackageError
from loopt.files import explain_os_errors
from loopt.plan import LoopPlan
from loopt.report.comparison import Comparison

COLOURS = {"iso_param": "#80868b", "iso_flop": "#c77700", "looped": "#1769aa"}  # the last is drawn on top
LABEL_HEIGHT = 13.0  # two lines of text, in percent of accuracy


def require_matplotlib() -> Any:
    """Returns matplotlib, set up to draw into files; raises a MissingPackageError where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise MissingPackageError("the figure needs matplotlib: pip install 'loopt[plots]'") from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "loopt"  # the same figure gives the same file
    return matplotlib


def draw_curves(comparison: Comparison, chance: float, png: Path) -> str:
    """Draws validation accuracy against training steps to a PNG file, and returns the figure as SVG text."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.6, 3.8), layout="constrained")
    axes = figure.add_subplot()
    heights = spread_labels([100 * getattr(comparison, role).curve[-1][1] for role in COLOURS], LABEL_HEIGHT)
    for (role, colour), height in zip(COLOURS.items(), heights, strict=True):
        row = getattr(comparison, role)
        steps, accuracies = zip(*row.curve, strict=True)
        axes.plot(steps, [100 * a for a in accuracies], color=colour, linewidth=2.2 if role == "looped" else 1.6)
        axes.annotate(
            f"{row.name}\n{row.parameters:,} parameters",
            (steps[-1], height),
            xytext=(6, 0),
            textcoords="offset points",
            color=colour,
            va="center",
            fontsize=9,
        )
    axes.axhline(100 * chance, color="#bbbbbb", linestyle=":", linewidth=1)
    axes.annotate(
        "guessing", (0, 100 * chance), xytext=(4, -10), textcoords="offset points", color="#80868b", fontsize=8
    )
    axes.set(xlabel="training steps", ylabel="validation accuracy, %", ylim=(0, 105), xlim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0)
    with explain_os_errors(f"write {png}"):
        figure.savefig(png, dpi=160)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return text.getvalue()[text.getvalue().index("<svg") :]


def draw_by_difficulty(curves: Mapping[LoopPlan, Mapping[str, float]], path: Path) -> None:
    """Draws accuracy against difficulty, whose names are such as "3 operations". Same colour: same number of distinct
    layers; same dashes: same depth."""
    figure, axes = _accuracy_figure(7.2, 3.8)
    colours = _assign_styles(("#1769aa", "#2e8b57", "#c77700", "#3c4043"), {plan.distinct_layers for plan in curves})
    dashes = _assign_styles((":", "-.", "--", "-"), {plan.depth for plan in curves})
    for plan, curve in curves.items():
        axes.plot(
            [name.partition(" ")[0] for name in curve],
            [100 * share for share in curve.values()],
            color=colours[plan.distinct_layers],
            linestyle=dashes[plan.depth],
            marker="o",
            markersize=3,
            label=plan.typography,
        )
    units = {name.partition(" ")[2] for curve in curves.values() for name in curve}
    axes.set(xlabel=max(units, key=len, default=""))  # "1 operation" is one of many
    figure.legend(loc="outside right center", fontsize=8, frameon=False, handlelength=3.2)
    figure.savefig(path, dpi=140)


def _accuracy_figure(width: float, height: float) -> tuple[Any, Any]:
    """Returns a figure, sized in inches, and its axes, with accuracy upwards."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.set(ylabel="accuracy, %", ylim=(0, 102))
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _assign_styles(styles: Sequence[str], numbers: set[int]) -> dict[int, str]:
    """Assigns a style to each number, the last to the largest; with too few styles the smallest numbers share one.

    >>> _assign_styles(["a", "b", "c"], {8, 2}), _assign_styles(["a", "b"], {1, 2, 4})
    ({8: 'c', 2: 'b'}, {4: 'b', 2: 'a', 1: 'a'})
    """
    return {number: styles[max(len(styles) - 1 - i, 0)] for i, number in enumerate(sorted(numbers, reverse=True))}


def spread_labels(heights: list[float], apart: float) -> list[float]:
    """Returns the heights of labels, moved down until they are ``apart`` from each other.

    >>> spread_labels([30.0, 99.0, 99.5], apart=10.0)
    [30.0, 89.5, 99.5]
    """
    moved = list(heights)
    ceiling = math.inf
    for i in sorted(range(len(heights)), key=lambda i: -heights[i]):
        moved[i] = min(heights[i], ceiling)
        ceiling = moved[i] - apart
    return moved
