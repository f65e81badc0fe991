"""Heatmaps of the cosine similarity between layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from loopt.files import explain_os_errors
from loopt.report.curves import require_matplotlib


def draw_heatmaps(matrices: Mapping[str, Tensor], path: Path) -> None:
    """Draws a heatmap [L, L] for each parameter group, all on the scale from -1 to 1, so that they can be compared."""
    require_matplotlib()
    from matplotlib.figure import Figure

    columns = min(4, len(matrices))
    rows = math.ceil(len(matrices) / columns)
    figure = Figure(figsize=(2.4 * columns + 0.8, 2.5 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (group, matrix) in zip(panels, matrices.items(), strict=False):
        image = axes.imshow(matrix.numpy(), vmin=-1, vmax=1, cmap="RdBu_r")
        axes.set_title(group, fontsize=10)
        axes.set(xticks=_ticks(len(matrix)), yticks=_ticks(len(matrix)))
        axes.tick_params(labelsize=7)
    for axes in panels[len(matrices) :]:
        axes.set_visible(False)
    figure.colorbar(image, ax=list(panels), shrink=0.7, label="cosine")
    figure.supxlabel("layer", fontsize=9)
    with explain_os_errors(f"write {path}"):
        figure.savefig(path, dpi=140)


def _ticks(layers: int) -> list[int]:
    """Returns the layers to label, as many as fit on an axis."""
    return list(range(0, layers, max(1, layers // 6)))
