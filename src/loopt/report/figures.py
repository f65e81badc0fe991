"""The one style of all figures, and how they are set up, labelled and written: as SVG and as PNG.

Colors are those of Okabe and Ito, which people with any kind of color vision tell apart; marks and dashes tell curves
apart without color. A drawing function is ``in_style``, so that nobody else's figures change.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from statistics import fmean
from typing import Any, ParamSpec, TypeVar

from loopt.errors import MissingPackageError
from loopt.files import explain_os_errors

P = ParamSpec("P")
T = TypeVar("T")

INK, MUTED, FAINT, PAPER = "#1f2328", "#5b6168", "#c9ced4", "#ffffff"
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, INK)
FOR_TEXT = {VERMILION: "#b34e00", GREEN: "#00795a", PURPLE: "#a3477a", ORANGE: "#8f6200", SKY: "#1f74a8"}
"""Darker shades of the colors that text could not be read in."""
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
DASHES = ("-", "--", "-.", ":")
SIDE_BY_SIDE = 3
TITLE_WIDTH = 36  # characters
LABEL_SIZE = 8.5  # points
LEADER = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 1, "shrinkB": 4, "relpos": (0, 0.5)}  # left of its label

STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "errorbar.capsize": 2.5,
    "legend.frameon": False,
    "legend.fontsize": LABEL_SIZE,
    "legend.handlelength": 3.5,
    "savefig.dpi": 144,
    "svg.fonttype": "none",  # text stays text: smaller, and it can be searched and read aloud
    "svg.hashsalt": "loopt",  # the same figure gives the same file
}


def require_matplotlib() -> Any:
    """Returns matplotlib; raises a MissingPackageError where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise MissingPackageError("the figure needs matplotlib: pip install 'loopt[plots]'") from None
    return matplotlib


def in_style(draw: Callable[P, T]) -> Callable[P, T]:
    """Makes a function draw in the one style."""

    @wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> T:
        with require_matplotlib().rc_context(STYLE):
            return draw(*args, **kwargs)

    return styled


@dataclass(frozen=True)
class Spread:
    """A number over seeds: the mean, and how far single seeds are from it."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], every: Sequence[float] = ()) -> Spread:
        """Returns the mean of ``values``, with the range of these and of ``every`` other seed."""
        return cls(fmean(values), min([*values, *every]), max([*values, *every]))


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
    return figure, [figure.add_subplot(rows, columns, place + 1) for place in range(count)]


def plot_spreads(axes: Any, curve: Mapping[Any, Spread], **style: Any) -> None:
    """Draws the means as a curve, with bars over the range where seeds differ."""
    places, spreads = list(curve), list(curve.values())
    axes.plot(places, [spread.mean for spread in spreads], **style)
    if any(spread.high > spread.low for spread in spreads):
        below = [spread.mean - spread.low for spread in spreads]
        above = [spread.high - spread.mean for spread in spreads]
        means = [spread.mean for spread in spreads]
        axes.errorbar(places, means, yerr=[below, above], fmt="none", ecolor=style.get("color", INK), elinewidth=1)


def label_ends(axes: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Writes a label beside the end of each curve, right of the axes: (x, y, text, color). Labels keep apart and within
    the height of the axes, as far as there is room; a thin line leads to the end of one that had to move. To be called
    when everything else is drawn."""
    axes.figure.draw_without_rendering()  # now the axes have their height
    line = 1.5 * LABEL_SIZE / 72 * axes.figure.dpi / axes.bbox.height
    tall = max((text.count("\n") + 1 for _, _, text, _ in ends), default=1)
    to_axes = axes.transData + axes.transAxes.inverted()
    right = [to_axes.transform((x, y)) for x, y, _, _ in ends]
    heights = spread_labels([float(height) for _, height in right], line * tall, (line * tall / 2, 1 - line * tall / 2))
    for (x, y, text, color), (end, was), height in zip(ends, right, heights, strict=True):
        led = abs(height - was) > line / 3 or end < 0.97
        axes.annotate(
            text,
            (x, y),
            xytext=(1.04, height),
            textcoords="axes fraction",
            color=FOR_TEXT.get(color, color),
            va="center",
            fontsize=LABEL_SIZE,
            annotation_clip=False,
            arrowprops={**LEADER, "color": color} if led else None,
        )


def spread_labels(heights: Sequence[float], apart: float, within: tuple[float, float]) -> list[float]:
    """Returns the heights of labels, moved as little as it takes to be ``apart`` from each other and ``within`` two
    heights; where these have no room for all, as many hang out below as above.

    >>> spread_labels([30.0, 99.0, 99.0], 10.0, (0.0, 200.0)), spread_labels([30.0, 99.0, 99.0], 10.0, (0.0, 100.0))
    ([30.0, 94.0, 104.0], [30.0, 90.0, 100.0])
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    pools: list[list[float]] = []  # labels that touch: where each would put the lowest of all
    for place, i in enumerate(order):
        pools.append([heights[i] - place * apart])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    low, high = within[0], within[1] - (len(heights) - 1) * apart  # of the lowest of all
    if high < low:
        low = high = (low + high) / 2
    lowest = [min(max(fmean(pool), low), high) for pool in pools for _ in pool]
    moved = dict(zip(order, (low + place * apart for place, low in enumerate(lowest)), strict=True))
    return [moved[i] for i in range(len(heights))]


def title_lines(title: str) -> str:
    """Returns the title of a panel, in as many lines as it takes."""
    return textwrap.fill(title, TITLE_WIDTH)


def write_figure(figure: Any, folder: Path, name: str) -> list[Path]:
    """Writes a figure as NAME.svg and NAME.png into a folder, and returns the two paths. The same figure gives the same
    files."""
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with explain_os_errors(f"write {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(paths[0], metadata=metadata)
        figure.set_layout_engine("none")  # both have the layout of the first; to find one takes longer than to draw
        figure.savefig(paths[1])
    return paths
