"""Of what difficulty would i-GSM have to be for our models to score as the paper's Table 2 has it?

    python benchmarks/igsm_mixture.py            from results/igsm/short, in the Markdown of docs/results.md

The paper does not say how many statements its problems need. Ours need 1 to 10, in equal shares, and each row of the
table is measured for each number. So a row's accuracy on any other mixture is known, for models trained on ours. The
mixtures that are tried have a share of problems with up to m needed statements, in equal parts, and for the rest those
with the most. For each m the share is the one that comes closest to the paper's ten rows; m = 10 and a share of
1 is the mixture of training.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loopt.plan import LoopPlan
from loopt.reproduce.igsm import COLUMN, igsm
from loopt.reproduce.table import by_difficulty


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
    squares = [(want - have) ** 2 for want, have in zip(wanted, accuracies, strict=True)]
    return Fit(up_to, share, accuracies, (sum(squares) / len(squares)) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the result files are")
    measured = by_difficulty(igsm, "short", parser.parse_args().results)
    absent = [str(row.plan) for row in igsm.rows if row.plan not in measured]
    if absent:
        sys.exit(f"rows {', '.join(absent)}: no accuracy by difficulty; loopt reproduce igsm --scale short measures it")
    plans = [row.plan for row in igsm.rows]
    paper = [row.paper[COLUMN] for row in igsm.rows]
    rows = [[100 * accuracy for accuracy in measured[plan].values()] for plan in plans]
    fits = [fit(rows, paper, up_to) for up_to in range(1, len(rows[0]) + 1)]
    print_fits(fits)
    print_rows(plans, paper, rows, sorted(fits, key=lambda one: one.error)[:2])


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


if __name__ == "__main__":
    main()
