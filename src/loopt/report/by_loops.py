"""The figure of quality against loops at inference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from loopt.report.figures import panels, style_of, write_figure


def draw_by_loops(
    curves: Mapping[str, Mapping[int, float]], trained: int, folder: Path, quality: str = "accuracy, %"
) -> list[Path]:
    """Draws curves from loops to quality, as loops.svg and loops.png; a line marks how many loops training had."""
    figure, (axes,) = panels(1, 6.4, 3.6)
    axes.axvline(trained, color="#80868b", linestyle="--", linewidth=1)
    top = {"transform": axes.get_xaxis_transform(), "va": "top", "fontsize": 8, "color": "#5f6368"}
    axes.text(trained, 1.0, f" trained with {trained}", **top)
    for index, (name, curve) in enumerate(curves.items()):
        axes.plot(list(curve), list(curve.values()), markersize=4, label=name, **style_of(index))
    axes.set(xlabel="loops at inference", ylabel=quality)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if quality.endswith("%"):
        axes.set_ylim(0, 104)
    if len(curves) > 1:
        figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False, handlelength=3.5)
    return write_figure(figure, folder, "loops")
