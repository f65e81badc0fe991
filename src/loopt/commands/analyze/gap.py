"""loopt analyze gap BASE LOOPED DEEP"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro
from rich.table import Table

from loopt.analysis.gap import Covariance, Gap, Measured, covariance_of_rates, gap_between
from loopt.analysis.points import Point, read_point, shared_metrics
from loopt.commands.analyze.output import OF_FILES, shown, write_json
from loopt.commands.parsing import parse_options
from loopt.errors import InputError
from loopt.evaluation.catalogue import GROUPS, TASKS, metric_in_words
from loopt.evaluation.exchange import Prediction
from loopt.evaluation.lines import ANSWERS, read_lines
from loopt.report.gap_figure import draw_gaps
from loopt.report.screen import screen


@dataclass(frozen=True)
class Options:
    """Print % Gap for each metric, 100·(LOOPED - BASE) / (DEEP - BASE): 0 where looping adds nothing to the baseline
    with as many parameters, 100 where it matches the baseline with as many operations. Where the files have standard
    errors it comes with a 95% interval; bits per byte are compared question by question where the three files have
    their answers beside them, as those of `loopt reproduce language` do. Writes gap.json, gap.svg and gap.png. For
    example:

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
    together = _paired([options.looped, options.base, options.deep])
    gaps = {
        one: gap_between(_measured(looped, one), _measured(base, one), _measured(deep, one), together.get(one))
        for one in metrics
    }
    rows = [
        [metric_in_words(metric), *(_score(point, metric) for point in (base, looped, deep)), _shown(gap)]
        for metric, gap in gaps.items()
    ]
    screen().print(_table(["metric", *titles, "% gap"], rows))
    in_words = {metric_in_words(metric): gap for metric, gap in gaps.items()}
    write_json(options.out, "gap", _as_json([base, looped, deep], gaps), lambda to: draw_gaps(in_words, titles, to))


def _table(headings: list[str], rows: list[list[str]]) -> Table:
    """Returns the rows as a table whose columns have room for their longest words, so that no word is broken."""
    table = Table(title="% Gap, with its 95% interval where standard errors are known", title_justify="left")
    for index, heading in enumerate(headings):
        longest = max(len(word) for row in [headings, *rows] for word in row[index].split())
        table.add_column(heading, justify="right" if index else "left", overflow="fold", min_width=longest)
    for row in rows:
        table.add_row(*row)
    return table


def _paired(files: list[Path]) -> dict[str, Covariance]:
    """Returns how the errors of bits per byte go together, by metric, of the tasks that all three have answers to; one
    answer alone tells no error."""
    folders = [path.with_suffix("") for path in files if path.suffix == ".json"]
    if len(folders) < len(files) or not all(folder.is_dir() for folder in folders):
        return {}
    of_task = {}
    for task in TASKS:
        answers = [folder / f"{task}{ANSWERS}" for folder in folders]
        if all(path.exists() for path in answers):
            read = [read_lines(Prediction, path) for path in answers]
            if len({tuple(one.id for one in predictions) for predictions in read}) > 1:
                raise InputError(f"{answers[1]}: answers to other questions than {answers[0]}")
            if len(read[0]) < 2:
                continue
            bits = [[one.gold_nats / math.log(2) for one in predictions] for predictions in read]
            of_task[task] = torch.tensor(covariance_of_rates(bits, [one.gold_bytes for one in read[0]]))
    groups: dict[str, list[str]] = {
        group: [task.name for task in TASKS.values() if task.group == group] for group in GROUPS
    }
    groups["all_tasks"] = [task.name for task in TASKS.values() if task.group != "primitives"]
    of_group = {
        group: torch.stack([of_task[task] for task in tasks]).sum(0) / len(tasks) ** 2
        for group, tasks in groups.items()
        if set(tasks) <= of_task.keys()
    }
    return {f"{name}/bits_per_byte": found.tolist() for name, found in (of_task | of_group).items()}


def _measured(point: Point, metric: str) -> Measured:
    return Measured(point.metrics[metric], point.standard_errors.get(metric))


def _shown(gap: Gap) -> str:
    return gap.undefined or shown(gap.percent, gap.interval, 3)


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
