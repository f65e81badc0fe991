"""loopt analyze gap BASE LOOPED DEEP"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import tyro
from rich.table import Table

from loopt.analysis.gap import Gap, Measured, gap_between
from loopt.analysis.points import Point, read_point, shared_metrics
from loopt.commands.analyze.output import OF_FILES, shown, write_json
from loopt.commands.parsing import parse_options
from loopt.report.gap_figure import draw_gaps
from loopt.report.screen import screen


@dataclass(frozen=True)
class Options:
    """Print % Gap for each metric, 100·(LOOPED - BASE) / (DEEP - BASE): 0 where looping adds nothing to the baseline
    with as many parameters, 100 where it matches the baseline with as many operations. Where the files have standard
    errors it comes with a 95% interval. Writes gap.json, gap.svg and gap.png. For example:

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
    titles = [point.plan.typography for point in (base, looped, deep)]
    if len(set(titles)) < 3:  # such as a regularized model beside one of the same plan
        titles = [point.name for point in (base, looped, deep)]
    metrics = shared_metrics([base, looped, deep], options.metrics)
    gaps = {one: gap_between(_measured(looped, one), _measured(base, one), _measured(deep, one)) for one in metrics}
    table = Table(title="% Gap, with its 95% interval where standard errors are known", title_justify="left")
    for column in ("metric", *titles, "% gap"):
        table.add_column(column, justify="left" if column == "metric" else "right", overflow="fold")
    for metric, gap in gaps.items():
        scores = (_score(point, metric) for point in (base, looped, deep))
        table.add_row(metric, *scores, gap.undefined or shown(gap.percent, gap.interval, 3))
    screen().print(table)
    write_json(options.out, "gap", _as_json([base, looped, deep], gaps), lambda to: draw_gaps(gaps, titles, to))


def _measured(point: Point, metric: str) -> Measured:
    return Measured(point.metrics[metric], point.standard_errors.get(metric))


def _score(point: Point, metric: str) -> str:
    error = point.standard_errors.get(metric)
    return f"{point.metrics[metric]:.4g}" + ("" if error is None else f" ± {error:.2g}")


def _as_json(trio: list[Point], gaps: dict[str, Gap]) -> dict[str, object]:
    roles = ("base", "looped", "deep")
    models = {role: {"name": point.name, "plan": str(point.plan)} for role, point in zip(roles, trio, strict=True)}
    values = {
        metric: asdict(gap) | {role: point.metrics[metric] for role, point in zip(roles, trio, strict=True)}
        for metric, gap in gaps.items()
    }
    return {"models": models, "gaps": values}
