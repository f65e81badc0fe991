"""How figures are set up and written: as SVG and as PNG, to be read without color."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loopt.files import explain_os_errors
from loopt.report.curves import require_matplotlib

MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
DASHES = ("-", "--", "-.", ":")
COLORS = ("#1769aa", "#c77700", "#2e8b57", "#8e44ad", "#3c4043")
SIDE_BY_SIDE = 3


def style_of(index: int) -> dict[str, Any]:
    """Returns the mark, dashes and color of a curve; marks and dashes tell curves apart without the color."""
    return {
        "marker": MARKS[index % len(MARKS)],
        "linestyle": DASHES[index % len(DASHES)],
        "color": COLORS[index % len(COLORS)],
    }


def panels(count: int, width: float = 3.5, height: float = 2.9) -> tuple[Any, list[Any]]:
    """Returns a figure and so many axes, a few in a row, sized in inches each."""
    require_matplotlib()
    from matplotlib.figure import Figure

    columns = 2 if count == 4 else min(SIDE_BY_SIDE, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[:count]:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(which="both", labelsize=8)
    for axes in grid[count:]:
        axes.set_axis_off()
    return figure, grid[:count]


def write_figure(figure: Any, folder: Path, name: str) -> list[Path]:
    """Writes a figure as NAME.svg and NAME.png into a folder, and returns the two paths. The same figure gives the same
    files."""
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with explain_os_errors(f"write {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(paths[0], metadata=metadata)
        figure.savefig(paths[1], dpi=150)
    return paths
