"""The figure of scores against depth (the paper's Figure 3), with the loss against the size that loops are worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loopt.analysis.intervals import Line
from loopt.analysis.loop_exponent import LoopLaw
from loopt.analysis.points import Point
from loopt.analysis.scaling import DepthLaw, Series
from loopt.evaluation.catalogue import metric_in_words
from loopt.report.figures import MUTED, in_style, panels, style_of, title_lines, write_figure

LOOPED, DEEP, OTHER = (style_of(index) for index in range(3))


@in_style
def draw_scaling(series: Series, laws: Sequence[DepthLaw], loop_law: LoopLaw | None, folder: Path) -> list[Path]:
    """Draws a panel for each metric, with points and fitted lines of both series, and one for the law of φ where there
    is one, as scaling.svg and scaling.png."""
    figure, grid = panels(len(laws) + (loop_law is not None))
    for axes, law in zip(grid, laws, strict=False):
        _draw_points(axes, series.deep, law.deep, law.metric, DEEP)
        _draw_points(axes, series.looped, law.looped, law.metric, LOOPED)
        depths = sorted({point.plan.depth for point in (*series.looped, *series.deep)})
        axes.set_xscale("log")
        axes.set_xticks(depths, [str(depth) for depth in depths])
        axes.minorticks_off()
        ratio = "" if law.ratio is None else f"\nslopes, looping to layers: {law.ratio:.2f}"
        if law.ratio_interval:
            ratio += f" [{law.ratio_interval.low:.2f}, {law.ratio_interval.high:.2f}]"
        axes.set_title(f"{title_lines(metric_in_words(law.metric))}{ratio}")
        axes.set_xlabel("depth, in layers that run")
    if loop_law:
        _draw_loop_law(grid[-1], series, loop_law)
    handles, _ = grid[0].get_legend_handles_labels()
    names = [f"({series.block}⊗L), depth by looping", "(D⊗1), depth by layers"]
    figure.legend([handles[1], handles[0]], names, loc="outside lower center", ncols=2)
    return write_figure(figure, folder, "scaling")


def _draw_points(axes: Any, points: Sequence[Point], line: Line, metric: str, style: dict[str, Any]) -> None:
    depths = [point.plan.depth for point in points]
    ends = [min(depths), max(depths)]
    axes.plot(depths, [point.metrics[metric] for point in points], **{**style, "linestyle": ""})
    fitted = [line.at(math.log(depth)) for depth in ends]
    axes.plot(ends, fitted, **{**style, "marker": ""})
    axes.plot([], [], label=metric, **style)  # for the legend: mark and line together


def _draw_loop_law(axes: Any, series: Series, law: LoopLaw) -> None:
    sizes: list[float] = []
    for points, style in ((series.deep, DEEP), (series.looped, LOOPED), (series.others, OTHER)):
        here = [law.size(point.parameters) for point in points if point.parameters]
        axes.plot(here, [point.loss for point in points], **{**style, "linestyle": ""})
        sizes += here
    low, high = math.log(min(sizes)), math.log(max(sizes))
    curve = [math.exp(low + (high - low) * i / 50) for i in range(51)]
    axes.plot(curve, [law.floor + law.factor * size**-law.alpha for size in curve], color=MUTED, linewidth=1)
    axes.set_xscale("log")
    phi = f"φ = {law.phi:.2f} [{law.interval.low:.2f}, {law.interval.high:.2f}]"
    phi += "" if law.determined else ": not determined"
    axes.set_title(f"the size that loops are worth\n{phi}")
    axes.set(xlabel="parameters, those looped r times counted $r^φ$ times", ylabel="loss")
