"""The figure of quality against loops at inference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopt.report.figures import MUTED, Spread, in_style, label_ends, panels, plot_spreads, style_of, write_figure

Curves = Mapping[str, Mapping[int, Spread]]
"""Quality by loops, by the curve's name."""


@in_style
def draw_by_loops(models: Mapping[str, Curves], trained: int, folder: Path, quality: str = "accuracy, %") -> list[Path]:
    """Draws curves from loops to quality, a panel for each model, as loops.svg and loops.png; a line marks how many
    loops training had."""
    figure, every = panels(len(models), *((7.0, 3.6) if len(models) == 1 else (4.2, 2.9)))
    names = list(next(iter(models.values())))
    alike = len(models) > 1 and all(list(curves) == names for curves in models.values())
    for axes, (model, curves) in zip(every, models.items(), strict=True):
        if len(models) > 1:
            axes.set_title(model, pad=16)
        _draw_model(axes, curves, trained, quality)
        if len(curves) > 1 and not alike:
            _label_curves(axes, curves)
    if alike and len(names) > 1:
        figure.legend(*every[0].get_legend_handles_labels(), loc="outside right center")
    return write_figure(figure, folder, "loops")


def _draw_model(axes: Any, curves: Curves, trained: int, quality: str) -> None:
    axes.axvline(trained, color=MUTED, linestyle="--", linewidth=1)
    top = {"transform": axes.get_xaxis_transform(), "va": "bottom", "ha": "center", "color": MUTED}
    axes.text(trained, 1.01, f"{trained} in training", **top)
    for index, (name, curve) in enumerate(curves.items()):
        plot_spreads(axes, curve, label=name, **style_of(index))
    axes.set(xlabel="number of loops at inference", ylabel=quality)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if quality.endswith("%"):
        axes.set_ylim(0, 103)


def _label_curves(axes: Any, curves: Curves) -> None:
    last = {name: max(curve) for name, curve in curves.items()}
    ends = [
        (last[name], curve[last[name]].mean, name, style_of(index)["color"])
        for index, (name, curve) in enumerate(curves.items())
    ]
    label_ends(axes, ends)
