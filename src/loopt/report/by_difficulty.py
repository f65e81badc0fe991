"""The figure of accuracy against difficulty, such as how many operations an answer takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopt.plan import LoopPlan
from loopt.report.figures import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    SKY,
    VERMILION,
    Spread,
    in_style,
    panels,
    plot_spreads,
    write_figure,
)

DEPTHS = (
    {"color": VERMILION, "linestyle": ":", "marker": "^"},
    {"color": ORANGE, "linestyle": "-.", "marker": "D"},
    {"color": GREEN, "linestyle": "--", "marker": "s"},
    {"color": BLUE, "linestyle": "-", "marker": "o"},
    {"color": SKY, "linestyle": (0, (6, 1, 1, 1)), "marker": "v"},
)
AXES = {"operations": "operations in the answer", "needed": "statements that the answer needs"}
"""What a task's difficulty is called on an axis."""
DEEPEST = {"color": INK, "linestyle": (0, (1, 1)), "marker": ""}

Curve = Mapping[str, Spread]


@in_style
def draw_by_difficulty(curves: Mapping[LoopPlan, Curve], folder: Path) -> list[Path]:
    """Draws accuracy against difficulty, whose names are such as "3 operations", as difficulty.svg and difficulty.png.
    A panel for each number of distinct layers; the same mark for the same depth. The baseline with the most layers, as
    deep as any, stands in every panel for comparison."""
    deepest = max(curves, key=lambda plan: plan.distinct_layers)
    shared = None if deepest.depth > deepest.distinct_layers or len(curves) == 1 else deepest
    depths = sorted({plan.depth for plan in curves})
    layers = sorted({plan.distinct_layers for plan in curves if plan != shared})
    figure, grid = panels(len(layers), 3.2, 3.0)
    for axes, count in zip(grid, layers, strict=True):
        mine = sorted((plan for plan in curves if plan.distinct_layers == count), key=lambda plan: -plan.depth)
        for plan in mine:
            style = DEPTHS[depths.index(plan.depth) % len(DEPTHS)]
            _draw_curve(axes, curves[plan], plan.typography, style)
        if shared:
            _draw_curve(axes, curves[shared], shared.typography, DEEPEST)
        axes.set_title("1 layer, looped" if count == 1 else f"{count} layers, looped")
        axes.set(ylim=(0, 103))
        axes.legend(loc="upper right", handlelength=2.8, borderaxespad=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
    grid[0].set_ylabel("accuracy, %")
    units = {name.partition(" ")[2] for curve in curves.values() for name in curve}
    unit = max(units, key=len, default="")  # "1 operation" is one of many
    differ = any(spread.high > spread.low for curve in curves.values() for spread in curve.values())
    seeds = " (vertical bars: range over seeds)" if differ else ""
    figure.supxlabel(f"{AXES.get(unit, unit)}{seeds}", fontsize=9)
    return write_figure(figure, folder, "difficulty")


def _draw_curve(axes: Any, curve: Curve, label: str, style: Mapping[str, Any]) -> None:
    numbers = {int(name.partition(" ")[0]): spread for name, spread in curve.items()}
    plot_spreads(axes, numbers, label=label, markersize=3.5, **style)
