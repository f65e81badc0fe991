"""Heatmaps of the cosine similarity between layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from loopt.report.figures import in_style, write_figure

READABLE = 8  # layers whose cosines still fit into their cells as numbers


@in_style
def draw_heatmaps(runs: Mapping[str, Mapping[str, Tensor]], folder: Path) -> list[Path]:
    """Draws a row of heatmaps [L, L] for each run, one for each parameter group, as similarity.svg and similarity.png.
    All are on one scale, dark where layers are alike and white at 0, or at the smallest cosine if that is below 0."""
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys(group for matrices in runs.values() for group in matrices))
    figure = Figure(figsize=(1.9 * len(groups) + 1.2, 2.2 * len(runs) + 0.3), layout="constrained")
    grid = figure.subplots(len(runs), len(groups), squeeze=False)
    white = min(0.0, *(float(matrix.min()) for matrices in runs.values() for matrix in matrices.values()))
    for row, (name, matrices) in zip(grid, runs.items(), strict=True):
        row[0].set_ylabel(f"{name}\nlayer", fontsize=9)
        for axes, group in zip(row, groups, strict=True):
            if group not in matrices:  # only some models have a gate
                axes.set_axis_off()
                continue
            matrix = matrices[group]
            image = axes.imshow(matrix.numpy(), vmin=white, vmax=1, cmap="Greys")
            axes.set_title(group, fontsize=9)
            axes.set(xticks=_ticks(len(matrix)), yticks=_ticks(len(matrix)))
            axes.tick_params(labelsize=7)
            if len(matrix) <= READABLE:
                _write_numbers(axes, matrix, white)
    figure.colorbar(image, ax=list(grid.flat), shrink=0.8, label="cosine of two layers' weights")
    figure.supxlabel("layer", fontsize=9)
    return write_figure(figure, folder, "similarity")


def _write_numbers(axes: Any, matrix: Tensor, white: float) -> None:
    written = {"ha": "center", "va": "center", "fontsize": min(8, 34 / len(matrix))}
    written["in_layout"] = False  # they are inside their cells, and measuring each takes long
    for i, row in enumerate(matrix.tolist()):
        for j, cosine in enumerate(row):
            dark = cosine - white > 0.6 * (1 - white)
            axes.text(j, i, f"{cosine:z.2f}", color="white" if dark else "black", **written)


def _ticks(layers: int) -> list[int]:
    """Returns the layers to label, as many as fit on an axis."""
    return list(range(0, layers, max(1, layers // 6)))
