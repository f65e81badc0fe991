"""Accuracy over training, by loops and by difficulty, as figures."""

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

COLOURS = {"iso_param": "#80868b", "iso_flop": "#c77700", "looped": "#1769aa"}
"""In the order they are drawn: the looped model's curve lies on top."""

LABEL_HEIGHT = 13.0
"""Of a label of two lines, in percent of accuracy."""


def require_matplotlib() -> Any:
    """Returns matplotlib, set up to draw into files; MissingPackageError where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise MissingPackageError("the figure needs matplotlib: pip install 'loopt[plots]'") from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "loopt"  # the same figure gives the same file
    return matplotlib


def draw_curves(comparison: Comparison, chance: float, png: Path) -> str:
    """Validation accuracy against training steps, to a PNG file and as SVG text."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.6, 3.8), layout="constrained")
    axes = figure.add_subplot()
    heights = spread([100 * getattr(comparison, role).curve[-1][1] for role in COLOURS], LABEL_HEIGHT)
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


def draw_by_loops(curves: Mapping[str, Mapping[int, float]], trained: int, path: Path) -> None:
    """Accuracy against the number of loops at inference; a line marks how many there were in training."""
    figure, axes = _accuracy_figure(6.4, 3.6)
    axes.axvline(trained, color="#b8bec5", linestyle="--", linewidth=1)
    for name, curve in curves.items():
        axes.plot(list(curve), [100 * share for share in curve.values()], marker="o", markersize=3, label=name)
    axes.set(xlabel="loops at inference")
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=140)


def draw_by_difficulty(curves: Mapping[LoopPlan, Mapping[str, float]], path: Path) -> None:
    """Accuracy against difficulty. Same colour: same number of distinct layers; same dashes: same depth."""
    figure, axes = _accuracy_figure(7.2, 3.8)
    colours = _shared_out(("#1769aa", "#2e8b57", "#c77700", "#3c4043"), {plan.distinct_layers for plan in curves})
    dashes = _shared_out((":", "-.", "--", "-"), {plan.depth for plan in curves})
    for plan, curve in curves.items():
        axes.plot(
            [name.replace(" ", "\n") for name in curve],
            [100 * share for share in curve.values()],
            color=colours[plan.distinct_layers],
            linestyle=dashes[plan.depth],
            marker="o",
            markersize=3,
            label=plan.typography,
        )
    axes.tick_params(axis="x", labelsize=8)
    figure.legend(loc="outside right center", fontsize=8, frameon=False, handlelength=3.2)
    figure.savefig(path, dpi=140)


def _accuracy_figure(width: float, height: float) -> tuple[Any, Any]:
    """A figure in inches and its axes, with accuracy upwards."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.set(ylabel="accuracy, %", ylim=(0, 102))
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _shared_out(styles: Sequence[str], numbers: set[int]) -> dict[int, str]:
    """The last style goes to the largest number; where there are more numbers than styles, the smallest share one.

    >>> _shared_out(["a", "b", "c"], {8, 2}), _shared_out(["a", "b"], {1, 2, 4})
    ({8: 'c', 2: 'b'}, {4: 'b', 2: 'a', 1: 'a'})
    """
    return {number: styles[max(len(styles) - 1 - i, 0)] for i, number in enumerate(sorted(numbers, reverse=True))}


def spread(heights: list[float], apart: float) -> list[float]:
    """The heights, moved down as far as it takes to keep them ``apart`` from each other.

    >>> spread([30.0, 99.0, 99.5], apart=10.0)
    [30.0, 89.5, 99.5]
    """
    moved = list(heights)
    ceiling = math.inf
    for i in sorted(range(len(heights)), key=lambda i: -heights[i]):
        moved[i] = min(heights[i], ceiling)
        ceiling = moved[i] - apart
    return moved
