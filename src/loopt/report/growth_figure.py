"""The figure of how the sizes of the theorems' constructions grow."""

from __future__ import annotations

from pathlib import Path

from loopt.report.figures import in_style, panels, style_of, write_figure
from loopt.theory.growth import Panel


@in_style
def draw_growth(growth: tuple[Panel, ...], folder: Path, name: str) -> list[Path]:
    """Draws a panel for each size, as NAME.svg and NAME.png: lines are formulas, marks what was built."""
    figure, every = panels(len(growth), 4.4, 3.1)
    for axes, panel in zip(every, growth, strict=True):
        axes.set_xscale("log", base=2)
        if panel.logarithmic:
            axes.set_yscale("log")
        for index, curve in enumerate(panel.curves):
            style = style_of(index)
            mark = style.pop("marker")
            axes.plot(*zip(*curve.formula, strict=True), drawstyle="steps-mid", **style)
            axes.plot(*zip(*curve.built, strict=True), linestyle="", marker=mark, color=style["color"])
            axes.plot([], [], marker=mark, label=curve.name, **style)
        axes.set_xlabel(panel.over)
        axes.set_title(panel.size)
        axes.xaxis.set_major_formatter("{x:.0f}")
        if not panel.logarithmic:
            axes.set_ylim(bottom=0)
            axes.yaxis.get_major_locator().set_params(integer=True)
        axes.legend()
    figure.suptitle(
        "Lines are formulas, marks what was built; of bits, the fewest that its certificate takes",
        fontsize=9,
        x=0.01,
        ha="left",
    )
    return write_figure(figure, folder, name)
