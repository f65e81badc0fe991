"""How much better one row of a table is than another, seed by seed, with a 95% interval of the mean.

    python benchmarks/row_differences.py more-loops cpu 2x8-random-loops 2x8-norm 2x8-both

The first row named is the one that each of the others is compared with, in every column and on the seeds that
all of them share. Rows of a seed have the same training examples, so it is their differences that are averaged. The
interval is Student's t.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from loopt.analysis.intervals import t_quantile
from loopt.evaluation.scores import mean
from loopt.reproduce.catalogue import EXPERIMENTS
from loopt.reproduce.experiment import Scale
from loopt.reproduce.table import TableResults


def difference(row: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """The mean of the differences, and how far its 95% interval goes to either side."""
    found = mean([one - other for one, other in zip(row, base, strict=True)])
    assert found.standard_error is not None
    return found.value, t_quantile(len(row) - 1) * found.standard_error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=EXPERIMENTS)
    parser.add_argument("scale", choices=get_args(Scale))
    parser.add_argument("base", help="the row to compare with, by its name")
    parser.add_argument("rows", nargs="+", metavar="row")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the result files are")
    arguments = parser.parse_args()
    experiment, names = EXPERIMENTS[arguments.table], [arguments.base, *arguments.rows]
    by_name = {row.name: row for row in experiment.rows}
    for name in names:
        if name not in by_name:
            sys.exit(f"row {name}: {arguments.table} has none of that name; allowed are {', '.join(by_name)}")
    experiment = replace(experiment, rows=tuple(by_name[name] for name in names))
    measured = TableResults.read(experiment, arguments.scale, arguments.results)
    for variant, seeds in measured.seeds.items():
        if len(seeds) < 2:
            of_these = f"rows {', '.join(names)}" + (f" of {variant}" if variant else "")
            sys.exit(f"{of_these}: share {len(seeds)} seeds; allowed are 2 or more")
    base = measured.rows[arguments.base].columns
    print(f"| less {by_name[arguments.base].label} | {' | '.join(base)} |\n|---|{'--:|' * len(base)}")
    for name in arguments.rows:
        found = [difference(measured.rows[name].columns[column], base[column]) for column in base]
        print(f"| {by_name[name].label} | {' | '.join(f'{value:+.1f} ±{half:.1f}' for value, half in found)} |")


if __name__ == "__main__":
    main()
