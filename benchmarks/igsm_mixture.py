"""What our models, trained on one law of i-GSM, would score on problems of other difficulty.

    python benchmarks/igsm_mixture.py            from results/igsm-even/short and results/igsm/short, in the Markdown of
                                                 docs/results.md

The law even has problems that need 1 to 10 statements, in equal shares, and each row of the table is measured for each
number. So a row's accuracy on any other mixture of these is known, for models trained on ours.

First: of what difficulty would i-GSM have to be for our models to score as the paper's Table 2 has it? The mixtures
that are tried have a share of problems with up to m needed statements, in equal parts, and for the rest those with the
most. For each m the share is the one that comes closest to the paper's ten rows; m = 10 and a share of 1 is the mixture
of training.

Then: what would they score on the law light? Its problems are matched in two ways. By needed statements: a row has the
accuracy that it has on problems of the law even that need as many, and from 11 on as many as 10. By operations: it has
that of problems that need as many statements as take so many operations on average in the law even, between two
numbers in proportion.

At last: what would the rows of either law score if any statement were asked for? Those of the law light are measured by
operations, those of the law even by needed statements, and each counts as what it was measured by.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from igsm_statistics import LAWS, SEED, Reading, batches, operations_of
from loopt.plan import LoopPlan
from loopt.random_bits import Stream
from loopt.reproduce.experiment import Experiment
from loopt.reproduce.igsm import COLUMN, igsm
from loopt.reproduce.table import by_difficulty
from loopt.tasks import IGSM

EXAMPLES = 50_000
"""Problems of each law by which they are matched."""


@dataclass(frozen=True)
class Fit:
    up_to: int
    """Needed statements of the easier problems."""
    share: float
    """Of them among all."""
    accuracies: list[float]
    """Of each row on that mixture."""
    error: float
    """Root of the mean square of what they are off."""


def fit(rows: Sequence[Sequence[float]], wanted: Sequence[float], up_to: int) -> Fit:
    """``rows``: accuracies by needed statements, from one on; ``wanted``: what each should have on the mixture."""
    hard = [row[-1] for row in rows]
    gains = [sum(row[:up_to]) / up_to - row[-1] for row in rows]  # if all problems were of the easier kind
    missing = [want - base for want, base in zip(wanted, hard, strict=True)]
    projection = sum(gain * miss for gain, miss in zip(gains, missing, strict=True))
    share = min(1.0, max(0.0, projection / sum(gain * gain for gain in gains)))  # least squares
    accuracies = [base + share * gain for base, gain in zip(hard, gains, strict=True)]
    return Fit(up_to, share, accuracies, rms(wanted, accuracies))


def rms(wanted: Sequence[float], accuracies: Sequence[float]) -> float:
    squares = [(want - have) ** 2 for want, have in zip(wanted, accuracies, strict=True)]
    return (sum(squares) / len(squares)) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the result files are")
    results = parser.parse_args().results
    plans = [row.plan for row in igsm("even").rows]
    paper = [row.paper[COLUMN] for row in igsm("even").rows]
    rows, light = (rows_measured(igsm(law), results) for law in ("even", "light"))
    fits = [fit(rows, paper, up_to) for up_to in range(1, len(rows[0]) + 1)]
    print_fits(fits)
    print_rows(plans, paper, rows, sorted(fits, key=lambda one: one.error)[:2])
    print_prediction(plans, paper, rows)
    print_asked(plans, paper, rows, light)


def rows_measured(experiment: Experiment, results: Path) -> list[list[float]]:
    """The accuracies of every row by difficulty, or the end where some are missing."""
    measured = by_difficulty(experiment, "short", results)
    absent = [str(row.plan) for row in experiment.rows if row.plan not in measured]
    if absent:
        rows_absent = f"rows {', '.join(absent)}: no accuracy by difficulty"
        sys.exit(f"{rows_absent}; loopt reproduce {experiment.name} --scale short measures it")
    return [[accuracy.mean for accuracy in measured[row.plan].values()] for row in experiment.rows]


def print_fits(fits: Sequence[Fit]) -> None:
    print("| needed statements | share, % | error |\n|---|--:|--:|")
    for one in fits:
        print(f"| up to {one.up_to} | {100 * one.share:.0f} | {one.error:.1f} |")


def print_rows(
    plans: Sequence[LoopPlan], paper: Sequence[float], rows: Sequence[Sequence[float]], fits: Sequence[Fit]
) -> None:
    heads = [f"up to {one.up_to} needed in {100 * one.share:.0f}%" for one in fits]
    print(f"\n| model | the paper's | 1 to {len(rows[0])} needed, alike | {' | '.join(heads)} |")
    print("|---|" + "--:|" * (2 + len(fits)))
    for i, (plan, want, row) in enumerate(zip(plans, paper, rows, strict=True)):
        shown = [want, sum(row) / len(row), *(one.accuracies[i] for one in fits)]
        print(f"| {plan.typography} | {' | '.join(f'{accuracy:.1f}' for accuracy in shown)} |")


def print_prediction(plans: Sequence[LoopPlan], paper: Sequence[float], rows: Sequence[Sequence[float]]) -> None:
    law, soft = sizes(LAWS["light"]), sizes(LAWS["light, 2 to 4 levels"])
    steps = mean_operations(sizes(LAWS["even"]))
    columns = {
        "the paper's": list(paper),
        "law even, measured": [sum(row) / len(row) for row in rows],
        "light, by needed": [by_needed(row, law) for row in rows],
        "light, by operations": [by_operations(row, law, steps) for row in rows],
        "2 to 4 levels, by needed": [by_needed(row, soft) for row in rows],
    }
    print_table(plans, columns)


def print_asked(
    plans: Sequence[LoopPlan], paper: Sequence[float], even: Sequence[Sequence[float]], light: Sequence[Sequence[float]]
) -> None:
    law = sizes_asked(LAWS["light, any asked"])
    operations = Counter({(k, k): sum(n for (_, took), n in law.items() if took == k) for _, k in law})
    columns = {
        "the paper's": list(paper),
        "any asked, by operations": [by_needed(row, operations) for row in light],
        "any asked, by needed": [by_needed(row, law) for row in even],
    }
    print_table(plans, columns)


def print_table(plans: Sequence[LoopPlan], columns: dict[str, list[float]]) -> None:
    """The first column is what the others' errors are from."""
    wanted, *others = columns.values()
    errors = [f"{rms(wanted, column):.1f}" for column in others]
    print(f"\n| model | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}")
    for i, plan in enumerate(plans):
        print(f"| {plan.typography} | {' | '.join(f'{column[i]:.1f}' for column in columns.values())} |")
    print(f"| error | {' | '.join(['', *errors])} |")


def sizes_asked(task: IGSM) -> Counter[tuple[int, int]]:
    """The same of problems that ask for any statement, which are read to know what it needs."""
    found: Counter[tuple[int, int]] = Counter()
    for indices in batches(EXAMPLES, "reading problems that ask for any statement"):
        for tokens in task.sample(indices, SEED, "test").tokens.tolist():
            problem = Reading.of([task.vocabulary[token] for token in tokens])
            found[len(problem.values), problem.operations] += 1
    return found


def sizes(task: IGSM) -> Counter[tuple[int, int]]:
    """How many test problems of a law need so many statements and take so many operations."""
    problem = task._law.draw(torch.arange(EXAMPLES), Stream(task.name, SEED, "test"), task.modulus)
    return Counter(zip(problem.needed[:, 0].tolist(), operations_of(problem).tolist(), strict=True))


def mean_operations(found: Counter[tuple[int, int]]) -> list[float]:
    """By needed statements, from one on."""
    total: Counter[int] = Counter()
    problems: Counter[int] = Counter()
    for (needed, operations), count in found.items():
        total[needed] += operations * count
        problems[needed] += count
    return [total[needed] / problems[needed] for needed in sorted(problems)]


def by_needed(row: Sequence[float], law: Counter[tuple[int, int]]) -> float:
    return sum(row[min(needed, len(row)) - 1] * count for (needed, _), count in law.items()) / law.total()


def by_operations(row: Sequence[float], law: Counter[tuple[int, int]], steps: Sequence[float]) -> float:
    """``steps``: the operations that problems with 1, 2, … needed statements take, by which ``row`` is measured."""
    return sum(interpolate(row, steps, operations) * count for (_, operations), count in law.items()) / law.total()


def interpolate(row: Sequence[float], steps: Sequence[float], operations: float) -> float:
    for (low, here), (high, there) in pairwise(zip(steps, row, strict=True)):
        if operations <= high:
            return here + (there - here) * (operations - low) / (high - low)
    return row[-1]


if __name__ == "__main__":
    main()
