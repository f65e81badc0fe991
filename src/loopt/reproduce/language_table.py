"""Tables of language models: Table 3 or 4 as the paper has it, the same by likelihood, and each group by its tasks. A
line under every looped row has its % gap in each column."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopt.analysis import percent_gap
from loopt.evaluation.catalogue import metric_in_words
from loopt.report.sheet import Cell, Line, Sheet
from loopt.reproduce.experiment import Experiment, Row, Scale
from loopt.reproduce.language_paper import CLOSED_BOOK, HEADLINE, MATH, OPEN_BOOK, PRIMITIVES
from loopt.reproduce.table import RowResults, TableResults, notes_on_runs

BITS = "/bits_per_byte"
NOISE = {"perplexity": 2, "primitives": 1}
"""What the note on noise tells, with so many digits."""
PERPLEXITIES = ("perplexity", "validation_perplexity")
CHOICE = "/choice"
DETAILS = ("seeds", "parameters", "FLOPs", "steps", "seconds")
HEADINGS = {
    "perplexity": "perplexity",
    "token_accuracy": "tokens right",
    "closed_book": "closed book",
    "open_book": "open book",
    "math_word_problems": "math",
    "all_tasks": "15 tasks",
    "primitives": "primitives",
}


@dataclass(frozen=True)
class Column:
    """A metric as a column of a table."""

    metric: str
    heading: str

    @property
    def is_percent(self) -> bool:
        return not (self.metric in PERPLEXITIES or self.metric.endswith(BITS))

    @property
    def digits(self) -> int:
        return 1 if self.is_percent else 2 if self.metric in PERPLEXITIES else 3

    @property
    def in_words(self) -> str:
        """Returns what the column is called in a figure, with its unit."""
        return metric_in_words(self.metric) + (", %" if self.is_percent else "")

    def gap(self, looped: float, iso_param: float, iso_flop: float) -> float | None:
        """Returns the % gap; None where depth, with parameters of its own, does not help."""
        helps = iso_flop > iso_param if self.is_percent else iso_flop < iso_param
        return percent_gap(looped, iso_param, iso_flop) if helps else None


def _by_task(names: tuple[str, ...], endings: tuple[str, ...]) -> tuple[Column, ...]:
    short = {name: name.removeprefix("assignment_").removeprefix("mawps_").replace("_", " ") for name in names}
    words = {"": "", BITS: ", bits a byte", CHOICE: ", choice"}
    return tuple(Column(f"{name}{ending}", f"{short[name]}{words[ending]}") for ending in endings for name in names)


VIEWS = {
    "table": tuple(Column(metric, HEADINGS[metric]) for metric in ("perplexity", "token_accuracy", *HEADLINE[1:])),
    "likelihood": (
        Column("perplexity", "perplexity"),
        Column("validation_perplexity", "of validation"),
        *(Column(f"{group}{BITS}", f"{HEADINGS[group]}, bits a byte") for group in HEADLINE[1:]),
        Column(f"primitives{CHOICE}", "primitives, choice"),
    ),
    "closed_book": _by_task(CLOSED_BOOK, ("", BITS)),
    "open_book": _by_task(OPEN_BOOK, ("", BITS)),
    "math_word_problems": _by_task(MATH, ("", BITS)),
    "primitives": _by_task(PRIMITIVES, ("", CHOICE, BITS)),
}
"""File -> its columns."""
TITLES = {
    "table": "",
    "likelihood": ", by likelihood",
    "closed_book": ", closed book QA (Table 5)",
    "open_book": ", open book QA (Table 6)",
    "math_word_problems": ", math word problems (Table 7)",
    "primitives": ", reasoning primitives (Table 8)",
}


def build_language_sheets(experiment: Experiment, scale: Scale, results: Path) -> dict[str, Sheet]:
    """Returns the tables by the name of their files; of those after the first, the ones with numbers of ours."""
    measured = TableResults.read(experiment, scale, results)
    sheets = {}
    for view, every in VIEWS.items():
        known = {metric for row in measured.rows.values() for metric in row.columns}
        columns = [one for one in every if one.metric in known or any(one.metric in r.paper for r in experiment.rows)]
        if view == "table" or any(column.metric in known for column in columns):
            sheets[view] = _sheet(experiment, scale, measured, view, columns)
    return sheets


def _sheet(experiment: Experiment, scale: Scale, measured: TableResults, view: str, columns: list[Column]) -> Sheet:
    comparable, lines = scale in experiment.comparable, []
    for row in experiment.rows:
        ours = measured.rows[row.name]
        runs = ours.runs
        lines.append(
            Line(
                name=row.label,
                looped=row.looped or row.regularizer.active,
                parameters=runs[0]["result"]["parameters"] if runs else None,
                flops=runs[0]["result"]["flops"] if runs else None,
                cells=[
                    Cell.of(ours.columns.get(one.metric, []), row.paper.get(one.metric), comparable, one.digits)
                    for one in columns
                ],
                gap=None,
                seeds=len(runs),
                steps=[run["result"]["step"] for run in runs],
                solved=[],
                seconds=sum(run["result"]["seconds"] for run in runs) if runs else None,
            )
        )
        if row.looped and _has_baselines(experiment, row):
            lines.append(_gap_line(experiment, row, columns, measured, comparable))
        if row.regularizer.active:
            lines.append(_as_looped_line(row, columns, runs))
    title = f"{experiment.title}{TITLES[view]}, scale {scale}"
    labels = [one.heading for one in columns]
    notes = [*_notes(experiment, scale, measured), *notes_on_runs(measured)]
    tops = tuple(_top(one, index, lines) for index, one in enumerate(columns))
    words = tuple(one.in_words for one in columns)
    return Sheet(title, labels, lines, notes, DETAILS, tops, unit="", in_words=words)


def _top(column: Column, index: int, lines: list[Line]) -> float:
    """Returns the end of a column's axis: 100 of percents, otherwise a round number that all bars are below."""
    if column.is_percent:
        return 100.0
    cells = [line.cells[index] for line in lines if not line.derived]
    largest = max((value for cell in cells for value in (cell.ours, cell.paper) if value is not None), default=1.0)
    step = 10 ** math.floor(math.log10(max(largest, 1e-6)))
    return step * math.ceil(largest / step)


def _has_baselines(experiment: Experiment, row: Row) -> bool:
    """Tells whether the table is to have both baselines of a looped row."""
    names = {one.name for one in experiment.rows}
    return {str(row.plan.iso_param), str(row.plan.iso_flop)} <= names


def _gap_line(
    experiment: Experiment, row: Row, columns: list[Column], measured: TableResults, comparable: bool
) -> Line:
    """Returns the line with the % gap of a looped row in every column, ours and what follows from the paper's."""
    means, paper = measured.means, {one.name: one.paper for one in experiment.rows}

    def gap(column: Column, values: dict[str, dict[str, float]]) -> float | None:
        names = (row.name, str(row.plan.iso_param), str(row.plan.iso_flop))
        three = [values.get(name, {}).get(column.metric) for name in names]
        looped, iso_param, iso_flop = three
        if looped is None or iso_param is None or iso_flop is None:
            return None
        return column.gap(looped, iso_param, iso_flop)

    cells = [Cell.of([gap(column, means)], gap(column, paper), comparable, 0) for column in columns]
    return Line(f"% gap {row.plan.typography}", True, None, None, cells, None, 0, [], [], None, derived=True)


def _as_looped_line(row: Row, columns: list[Column], runs: list[dict[str, Any]]) -> Line:
    """Returns the line with what a regularized row does when the mean of its blocks is looped."""
    k = row.regularizer.block
    cells = [
        Cell.of([run.get("as_looped", {}).get(one.metric) for run in runs], None, digits=one.digits) for one in columns
    ]
    name = f"  run as ({k}⊗{row.plan.depth // k})"
    return Line(name, True, None, None, cells, None, 0, [], [], None, derived=True)


def _every_seed(row: Row, found: RowResults) -> Iterator[str]:
    """Yields perplexity and primitives of every seed, for a row of which not all seeds are shown."""
    for variant, by_seed in found.every.items():
        if len(by_seed) > len(found.shown.get(variant, [])):
            metrics = [run["metrics"] for run in by_seed.values()]
            of_each = [
                ", ".join(f"{one[name]:.{digits}f}" if name in one else "-" for one in metrics)
                for name, digits in NOISE.items()
            ]
            yield f"{row.label} {' and '.join(of_each)}"


def _notes(experiment: Experiment, scale: Scale, measured: TableResults) -> Iterator[str]:
    rows = measured.rows.values()
    runs = [run for row in rows for run in row.runs]
    yield "Ours (the paper's). Perplexity on test text, in brackets on the paper's validation text; others in %."
    yield "% gap of each column; in brackets what follows from the paper's rounded numbers."
    if scale == "cpu":
        yield "At this scale models learn next to nothing: it shows that all works, not whether looping helps."
    elif scale == "short":
        yield "Text, size and budget are not the paper's: compare the pattern, not the numbers."
    if runs:
        mixed = sorted({f"{len(run['mixture'])} tasks" if run["mixture"] else "none" for run in runs})
        yield f"Tasks mixed into the training text: {', '.join(mixed)}."
        seeds = [seed for shared in measured.seeds.values() for seed in shared]
        if seeds == [0]:
            yield "One seed each."
        elif seeds:
            yield f"Mean [range] over the seeds that all rows have: {' '.join(map(str, seeds))}."
        else:
            yield "Rows share no seed, so they cannot be compared; each shows its own."
        told = sorted({str(run["tokens"])[:12] for run in runs})
        yield f"Rows of a seed saw the same tokens in the same order (SHA-256 {', '.join(told)})."
        if any(run["invented"] for run in runs):
            yield "The 15 tasks are INVENTED mini-sets of a few questions; they show that all works, nothing else."
        if len({json.dumps(run["questions"], sort_keys=True) for run in runs}) > 1:
            yield "Rows answered different questions, so their tasks cannot be compared."
        if noise := [text for row in experiment.rows for text in _every_seed(row, measured.rows[row.name])]:
            yield f"Noise, perplexity and primitives of every seed of rows that have more: {'; '.join(noise)}."
    strangers = [name for row in rows for name in row.strangers]
    if strangers:
        yield f"Left out, since trained on other tokens or in another order: {', '.join(strangers)}."
