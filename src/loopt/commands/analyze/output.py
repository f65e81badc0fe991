"""What every analysis leaves behind: numbers as JSON or CSV, and a figure beside them."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from loopt.analysis.intervals import Interval
from loopt.analysis.points import Point
from loopt.errors import InputError, MissingPackageError
from loopt.files import explain_os_errors, write_atomically
from loopt.report.screen import printable

Draw = Callable[[Path], list[Path]]
"""Draws a figure into a folder and returns its files."""

OF_FILES = Path("runs/analysis")
"""Where an analysis of files writes, unless told otherwise."""


def write_json(folder: Path, name: str, data: Any, draw: Draw) -> None:
    """Writes NAME.json and the figure, and prints where they are."""
    _write(folder, f"{name}.json", json.dumps(_without_nan(data), indent=1) + "\n", draw)


def write_csv(folder: Path, name: str, rows: Sequence[Mapping[str, object]], draw: Draw) -> None:
    """Writes NAME.csv, a line for each row under their names, and the figure; prints where they are."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    _write(folder, f"{name}.csv", text.getvalue(), draw)


def _write(folder: Path, name: str, text: str, draw: Draw) -> None:
    with explain_os_errors(f"write {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, text)
    try:
        drawn = draw(folder)
    except MissingPackageError as error:  # without matplotlib there are still the numbers
        print(f"wrote {printable(folder / name)}; not drawn: {error}")
        return
    figures = " and ".join(path.name for path in drawn) or "no figure: nothing to draw"
    print(printable(f"wrote {folder / name}, {figures}"))


def _without_nan(value: Any) -> Any:
    """Returns data with null for the numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(name): _without_nan(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def names_of(paths: Sequence[Path]) -> dict[Path, str]:
    """Returns a name for each run or file: its own, or its whole path where two have the same. None at all is an
    InputError.

    >>> list(names_of([Path("a/4x6"), Path("b/4x6"), Path("b/24x1.json")]).values())
    ['a/4x6', 'b/4x6', '24x1']
    """
    if not paths:
        raise InputError("which runs? Allowed are 1 or more, by their directories")
    short = {path: path.name if path.is_dir() else path.name.removesuffix(".json") for path in paths}
    return {path: name if list(short.values()).count(name) == 1 else str(path) for path, name in short.items()}


def titles_of(points: Sequence[Point]) -> list[str]:
    """Returns what compared models are called: by their plans, or by their files where two have the same, such as a
    regularized model beside its baseline."""
    plans = [point.plan.typography for point in points]
    return plans if len(set(plans)) == len(plans) else [point.name for point in points]


def table_of_metrics(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Returns a line for each metric as a table whose columns have room for their longest words, so that no word is
    broken."""
    table = Table(title=title, title_justify="left")
    for index, heading in enumerate(["metric", *headings]):
        longest = max(len(word) for text in [heading, *(row[index] for row in rows)] for word in text.split())
        table.add_column(heading, justify="right" if index else "left", overflow="fold", min_width=longest)
    for row in rows:
        table.add_row(*row)
    return table


def score_cell(point: Point, metric: str) -> str:
    """Returns a score with its standard error, as a cell of a table."""
    error = point.standard_errors.get(metric)
    return f"{point.metrics[metric]:.4g}" + ("" if error is None else f" ± {error:.2g}")


def shown(value: float | None, interval: Interval | None = None, digits: int = 4) -> str:
    """Returns a number with its confidence interval, as a cell of a table.

    >>> shown(1.19, Interval(1.02, 1.4137), 3), shown(0.5), shown(None)
    ('1.19 [1.02, 1.41]', '0.5', '-')
    """
    if value is None:
        return "-"
    within = f" [{interval.low:.{digits}g}, {interval.high:.{digits}g}]" if interval else ""
    return f"{value:.{digits}g}{within}"
