"""Accuracy over training, as a figure."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from loopt.plan import InputError
from loopt.report.comparison import Comparison

COLOURS = {"iso_param": "#9aa0a6", "looped": "#1769aa", "iso_flop": "#c77700"}


def require_matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise InputError("the figure needs matplotlib: pip install 'loopt[plots]'") from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "loopt"  # the same figure gives the same file
    return matplotlib


def draw_curves(comparison: Comparison, chance: float, png: Path) -> str:
    """Validation accuracy against training steps, to a PNG file and as SVG text."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for role, colour in COLOURS.items():
        row = getattr(comparison, role)
        steps, accuracies = zip(*row.curve, strict=True)
        axes.plot(steps, [100 * a for a in accuracies], color=colour, linewidth=2.2 if role == "looped" else 1.6)
        axes.annotate(
            f"{row.name}\n{row.parameters:,} parameters",
            (steps[-1], 100 * accuracies[-1]),
            xytext=(6, {"iso_param": 0, "looped": -12, "iso_flop": 10}[role]),
            textcoords="offset points",
            color=colour,
            va="center",
            fontsize=9,
        )
    axes.axhline(100 * chance, color="#bbbbbb", linestyle=":", linewidth=1)
    axes.annotate("guessing", (0, 100 * chance), xytext=(2, 3), textcoords="offset points", color="#888888", fontsize=8)
    axes.set(xlabel="training steps", ylabel="validation accuracy, %", ylim=(0, 105), xlim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0)
    figure.savefig(png, dpi=160)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
