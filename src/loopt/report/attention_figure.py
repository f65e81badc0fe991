"""The figure of a built model's attention: a map for each head of each layer that runs."""

from __future__ import annotations

import math
from pathlib import Path

from loopt.report.figures import FAINT, MUTED, in_style, require_matplotlib, write_figure
from loopt.theory.proof import AttentionMaps

CELL, EDGE = 0.17, 0.75  # the height of a position and the space around a map, in inches
IN_A_ROW = 3


@in_style
def draw_attention(maps: AttentionMaps, folder: Path, name: str) -> list[Path]:
    """Draws the maps of all heads, a row for each layer where those have equally many, as NAME.svg and NAME.png. A row
    of a map is the position that looks, a column the one that it looks at."""
    require_matplotlib()
    from matplotlib.figure import Figure

    heads, n = {len(of_layer) for _, of_layer in maps.rows}, len(maps.tokens)
    across = heads.pop() if len(heads) == 1 else IN_A_ROW
    named = [(f"{layer}: {head}", weights) for layer, of_layer in maps.rows for head, weights in of_layer]
    down, side = math.ceil(len(named) / across), n * CELL + EDGE
    figure = Figure(figsize=(max(across * side, 5.0), down * side + 0.5), layout="constrained")
    figure.suptitle(maps.title, fontsize=9, weight="bold", x=0.02, ha="left")
    for place, (title, weights) in enumerate(named, start=1):
        axes = figure.add_subplot(down, across, place)
        axes.imshow(weights.numpy(), cmap="Blues", vmin=0, vmax=1)
        axes.set_title(title, fontsize=8)
        axes.set_xticks(range(n), maps.tokens, fontsize=5.5, rotation=90)
        axes.set_yticks(range(n), maps.tokens, fontsize=5.5)
        axes.tick_params(length=0, colors=MUTED)
        for at in range(1, n):
            axes.axhline(at - 0.5, color=FAINT, linewidth=0.3)
            axes.axvline(at - 0.5, color=FAINT, linewidth=0.3)
    return write_figure(figure, folder, name)
