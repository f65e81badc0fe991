"""The figure of what probes read after each loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loopt.analysis.probes import Score
from loopt.report.figures import in_style, write_figure


@in_style
def draw_probes(scores: Sequence[Score], by: str, folder: Path) -> list[Path]:
    """Draws a heatmap of accuracy, a row for each quantity and a column for each step, as probe.svg and probe.png; each
    cell also has the number, and that of the control task in brackets."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(score.quantity for score in scores))
    steps = sorted({score.step for score in scores})
    figure = Figure(figsize=(0.85 * len(steps) + 2.6, 0.45 * len(names) + 1.1), layout="constrained")
    axes = figure.subplots()
    found = {(score.quantity, score.step): score for score in scores}
    shares = [[100 * found[name, step].accuracy for step in steps] for name in names]
    axes.imshow(shares, vmin=0, vmax=100, cmap="Blues", aspect="auto")
    axes.set(xticks=range(len(steps)), yticks=range(len(names)), xlabel=f"after {by}; 0 is the input")
    axes.set_xticklabels([str(step) for step in steps])
    axes.set_yticklabels(names)
    axes.set_title("read rightly by a linear probe, % (of random labels)", fontsize=9)
    for i, name in enumerate(names):
        for j, step in enumerate(steps):
            one = found[name, step]
            color = "white" if one.accuracy > 0.6 else "black"
            text = f"{100 * one.accuracy:.0f} ({100 * one.control:.0f})"
            axes.text(j, i, text, ha="center", va="center", fontsize=8, color=color)
    return write_figure(figure, folder, "probe")
