"""Cosines between layers as heatmaps, one for each parameter group."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from loopt.files import explain_os_errors
from loopt.report.curves import require_matplotlib


def draw_heatmaps(matrices: Mapping[str, Tensor], path: Path) -> None:
    """[L, L] each, with one scale from -1 to 1 for all, so that groups and models can be compared."""
    require_matplotlib()
    from matplotlib.figure import Figure

    columns = min(4, len(matrices))
    rows = math.ceil(len(matrices) / columns)
    figure = Figure(figsize=(2.4 * columns + 0.8, 2.5 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (group, matrix) in zip(panels, matrices.items(), strict=False):
        image = axes.imshow(matrix.numpy(), vmin=-1, vmax=1, cmap="RdBu_r")
        axes.set_title(group, fontsize=10)
        axes.set(xticks=_few(len(matrix)), yticks=_few(len(matrix)))
        axes.tick_params(labelsize=7)
    for axes in panels[len(matrices) :]:
        axes.set_visible(False)
    figure.colorbar(image, ax=list(panels), shrink=0.7, label="cosine")
    figure.supxlabel("layer", fontsize=9)
    with explain_os_errors(f"write {path}"):
        figure.savefig(path, dpi=140)


def _few(layers: int) -> list[int]:
    """Numbers of layers that fit on an axis."""
    return list(range(0, layers, max(1, layers // 6)))
