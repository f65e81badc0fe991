"""The figure of scores against log-perplexity as training proceeds (the paper's Figures 2 and 7)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loopt.analysis.isoplot import IsoLine, IsoPoint
from loopt.evaluation.catalogue import metric_in_words
from loopt.report.figures import in_style, panels, style_of, title_lines, write_figure


@in_style
def draw_isoplot(points: Sequence[IsoPoint], lines: Sequence[IsoLine], unit: str, folder: Path) -> list[Path]:
    """Draws a panel for each group, a fitted line for each model, as isoplot.svg and isoplot.png. Log-perplexity runs
    from right to left, so that training goes to the right."""
    groups = list(dict.fromkeys(line.group for line in lines))
    models = list(dict.fromkeys(line.model for line in lines))
    figure, grid = panels(len(groups))
    for axes, group in zip(grid, groups, strict=True):
        for line in (line for line in lines if line.group == group):
            style = style_of(models.index(line.model))
            mine = [point for point in points if point.model == line.model]
            x = [point.log_perplexity for point in mine]
            axes.plot(x, [point.scores[group] for point in mine], **{**style, "linestyle": ""})
            if line.fit:
                ends = [max(x), min(x)]
                axes.plot(ends, [line.fit.at(end) for end in ends], **{**style, "marker": ""})
        axes.invert_xaxis()
        axes.set_title(title_lines(metric_in_words(group)))
        axes.set(xlabel="log-perplexity (training goes to the right)", ylabel=unit)
    handles = [grid[0].plot([], [], label=model, **style_of(i))[0] for i, model in enumerate(models)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(models)))
    return write_figure(figure, folder, "isoplot")
