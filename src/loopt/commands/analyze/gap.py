"""loopt analyze gap BASE LOOPED DEEP"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import tyro

from loopt.analysis.gap import Gap, gap_between
from loopt.analysis.points import Point, read_point, shared_metrics
from loopt.commands.analyze.output import OF_FILES, score_cell, shown, table_of_metrics, titles_of, write_json
from loopt.commands.analyze.pairing import paired
from loopt.commands.parsing import parse_options
from loopt.evaluation.catalogue import metric_in_words
from loopt.report.gap_figure import draw_gaps
from loopt.report.screen import screen


@dataclass(frozen=True)
class Options:
    """Print % Gap for each metric, 100·(LOOPED - BASE) / (DEEP - BASE): 0 where looping adds nothing to the baseline
    with as many parameters, 100 where it matches the baseline with as many operations. Where the files have standard
    errors it comes with a 95% interval; bits per byte are compared question by question where the three files have
    their answers beside them, and perplexity sequence by sequence where they have each one's loss, as those of `loopt
    reproduce language` do. Writes gap.json, gap.svg and gap.png. For example:

    loopt analyze gap runs/4x1 runs/4x6 runs/24x1 --metrics perplexity
    """

    base: tyro.conf.Positional[Path]
    """The baseline with as many parameters, (k⊗1): the directory of a finished run, or a result file."""
    looped: tyro.conf.Positional[Path]
    """The looped model, (k⊗L)."""
    deep: tyro.conf.Positional[Path]
    """The baseline with as many operations, (kL⊗1)."""
    metrics: tuple[str, ...] = ()
    """Which metrics; all that the three have unless given."""
    out: Path = OF_FILES
    """Directory of the files."""


def main(name: str, arguments: list[str]) -> None:
    options = parse_options(Options, arguments, f"loopt analyze {name}")
    base, looped, deep = (read_point(path) for path in (options.base, options.looped, options.deep))
    titles = titles_of([base, looped, deep])
    metrics = shared_metrics([base, looped, deep], options.metrics)
    together = paired([options.looped, options.base, options.deep], [looped, base, deep])
    gaps = {
        one: gap_between(looped.measured(one), base.measured(one), deep.measured(one), together.get(one))
        for one in metrics
    }
    rows = [
        [metric_in_words(metric), *(score_cell(point, metric) for point in (base, looped, deep)), _shown(gap)]
        for metric, gap in gaps.items()
    ]
    title = "% Gap, with its 95% interval where standard errors are known"
    screen().print(table_of_metrics(title, [*titles, "% gap"], rows))
    in_words = {metric_in_words(metric): gap for metric, gap in gaps.items()}
    write_json(options.out, "gap", _as_json([base, looped, deep], gaps), lambda to: draw_gaps(in_words, titles, to))


def _shown(gap: Gap) -> str:
    return gap.undefined or shown(gap.percent, gap.interval, 3)


def _as_json(trio: list[Point], gaps: dict[str, Gap]) -> dict[str, object]:
    roles = ("base", "looped", "deep")
    models = {role: {"name": point.name, "plan": str(point.plan)} for role, point in zip(roles, trio, strict=True)}
    values = {
        metric: asdict(gap) | {role: point.metrics[metric] for role, point in zip(roles, trio, strict=True)}
        for metric, gap in gaps.items()
    }
    return {"models": models, "gaps": values}
