"""The figures of language models, from their result files: isoplots, depth, loops at inference, cosines of layers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from loopt.analysis.isoplot import IsoPoint, fit_isoplot
from loopt.analysis.loop_exponent import fit_loop_law
from loopt.analysis.points import Point, read_point, shared_metrics
from loopt.analysis.scaling import fit_depth_law, series_of
from loopt.errors import InputError
from loopt.plan import LoopPlan
from loopt.report.figures import INK, MUTED, in_style, panels, style_of, write_figure
from loopt.report.heatmaps import draw_heatmaps
from loopt.report.isoplot_figure import draw_isoplot
from loopt.report.scaling_figure import draw_scaling
from loopt.reproduce.experiment import Experiment, Row, Scale, jobs_of
from loopt.reproduce.language_measurement import SEED_OF_FIGURES
from loopt.reproduce.table import TableResults

GROUPS = ("closed_book", "open_book", "math_word_problems", "primitives")
BITS = "/bits_per_byte"

BY_DEPTH = {
    "perplexity": "perplexity",
    f"open_book{BITS}": "open book, bits per byte",
    "primitives": "primitives, %",
}

Found = dict[str, Any]


def draw_language_figures(experiment: Experiment, scale: Scale, results: Path, folder: Path) -> list[Path]:
    """Draws every figure that the results of seed 0 have the numbers for, and returns the files."""
    measured = TableResults.read(experiment, scale, results)
    rows = [(row, found) for row in experiment.rows for found in _seed_of_figures(measured, row)]
    drawn: list[Path] = []
    if points := [point for row, found in rows for point in _along_training(row, found)]:
        drawn += draw_isoplot(points, fit_isoplot(points), "bits per byte", folder)
    if any("by_loops" in found for _, found in rows):
        drawn += _draw_by_depth(rows, folder)
    deep = {row.label: found["cosines"] for row, found in rows if row.plan == LoopPlan.parse("24x1")}
    if experiment.name == "regularization" and deep:
        matrices = {
            name: {group: torch.tensor(matrix) for group, matrix in groups.items()} for name, groups in deep.items()
        }
        drawn += draw_heatmaps(matrices, folder)
    if experiment.name == "depth-scaling":
        there = {row.name for row, _ in rows}
        jobs = [job for job in jobs_of(experiment, scale, 1) if job.row.name in there]
        drawn += _draw_scaling([read_point(job.result_path(results)) for job in jobs], folder)
    return drawn


def _seed_of_figures(measured: TableResults, row: Row) -> Iterator[Found]:
    by_seed = measured.rows[row.name].every[""]
    if SEED_OF_FIGURES in by_seed:
        yield by_seed[SEED_OF_FIGURES]


def _along_training(row: Row, found: Found) -> Iterator[IsoPoint]:
    """Yields the checkpoints of a row, with the bits per byte of each group."""
    for fraction, metrics in found.get("by_checkpoint", {}).items():
        scores = {group: metrics[f"{group}{BITS}"] for group in GROUPS if f"{group}{BITS}" in metrics}
        yield IsoPoint(row.label, float(fraction), metrics["log_perplexity"], scores)


@in_style
def _draw_by_depth(rows: list[tuple[Row, Found]], folder: Path) -> list[Path]:
    """Draws what looped models do with other numbers of loops, by the depth that runs, beside rows that do not loop and
    that were asked the same questions."""
    looped = [(row, found["by_loops"]) for row, found in rows if "by_loops" in found]
    plain = [
        (row.plan.depth, found["by_checkpoint"]["1.0"])
        for row, found in rows
        if "by_loops" not in found and "1.0" in found.get("by_checkpoint", {})
    ]
    measured = [one for _, by_loops in looped for one in by_loops.values()] + [metrics for _, metrics in plain]
    wanted = {metric: name for metric, name in BY_DEPTH.items() if all(metric in one for one in measured)}
    figure, grid = panels(len(wanted))
    for axes, (metric, name) in zip(grid, wanted.items(), strict=True):
        for index, (row, by_loops) in enumerate(looped):
            curve = {row.plan.with_loops(int(loops)).depth: one[metric] for loops, one in by_loops.items()}
            axes.plot(list(curve), list(curve.values()), markersize=3, label=row.label, **style_of(index))
            own = row.plan.depth
            axes.plot([own], [curve[own]], marker="o", markersize=9, fillstyle="none", color=INK)
        if plain:
            depths, values = zip(*((depth, metrics[metric]) for depth, metrics in plain), strict=True)
            axes.plot(depths, values, marker="x", linestyle="none", color=MUTED, label="not looped")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        if metric == "perplexity":
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter("{x:g}")
        elif "%" in name:
            axes.set_ylim(0, 104)
        axes.set_xlabel("depth, in layers that run")
        axes.set_ylabel(name)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return write_figure(figure, folder, "loops")


def _draw_scaling(points: list[Point], folder: Path) -> list[Path]:
    """Draws Figure 3 with its fits, where there are two depths of each series."""
    try:
        series = series_of(points)
        wanted = ("perplexity", "token_accuracy", *GROUPS, *(f"{group}{BITS}" for group in GROUPS))
        metrics = [metric for metric in shared_metrics(points, ()) if metric in wanted]
        laws = [fit_depth_law(series, metric) for metric in metrics]
    except InputError:
        return []
    loop_law = fit_loop_law(points)
    return draw_scaling(series, laws, None if isinstance(loop_law, str) else loop_law, folder)
