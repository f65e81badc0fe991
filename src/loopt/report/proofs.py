"""A proof as tables of sizes and checks, and its traces as text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loopt.theory.learned import HopComparison
from loopt.theory.proof import Check, Proof, Size, Trace


def proof_report(proof: Proof) -> RenderableType:
    """Returns what ``loopt prove`` prints about one theorem."""
    notes = Table.grid(padding=(0, 1))
    for note in proof.notes:
        notes.add_row("-", note)
    return Group(Text(proof.title, style="bold"), _sizes(proof.sizes), _checks(proof.checks), notes, Text())


def _sizes(sizes: Sequence[Size]) -> Table:
    table = Table()
    for column, justify in (("size", "left"), ("claimed", "right"), ("actual", "right"), ("", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for size in sizes:
        claimed = "-" if size.claimed is None else str(size.claimed)
        table.add_row(size.name, claimed, str(size.actual), size.note, style="" if size.as_claimed else "yellow")
    return table


def _checks(checks: Sequence[Check]) -> Table:
    table = Table()
    columns = ["check", "for", "cases", "wrong", "seconds", "exact"]
    if any(check.worst is not None for check in checks):
        columns.insert(4, "largest error")
    for column in columns:
        table.add_column(column, justify="left" if column in ("check", "for") else "right")
    for check in checks:
        cells = {
            "check": check.what if check.exact or not check.where else f"{check.what}\nwrong: {check.where}",
            "for": check.scope,
            "cases": f"{check.cases:,} {check.unit}",
            "wrong": f"{check.wrong:,}",
            "largest error": "" if check.worst is None else f"{check.worst:.1e}",
            "seconds": f"{check.seconds:.1f}",
            "exact": _verdict(check.exact),
        }
        table.add_row(*(cells[column] for column in columns), style="" if check.exact else "bold red")
    return table


def summary(proofs: dict[str, Proof], seconds: dict[str, float]) -> Table:
    """Returns a table with a row for each theorem; ``seconds`` include building and tracing."""
    table = Table(title="All theorems", title_justify="left", title_style="bold")
    for column in ("theorem", "checks", "cases", "wrong", "exact", "seconds"):
        table.add_column(column, justify="left" if column == "theorem" else "right")
    for name, proof in proofs.items():
        cases, wrong = sum(check.cases for check in proof.checks), sum(check.wrong for check in proof.checks)
        counts = (str(len(proof.checks)), f"{cases:,}", f"{wrong:,}")
        style = "" if proof.exact else "bold red"
        table.add_row(name, *counts, _verdict(proof.exact), f"{seconds[name]:.1f}", style=style)
    return table


def proof_record(name: str, proof: Proof) -> dict[str, object]:
    """Returns a proof as ``loopt prove --json`` prints it."""
    return {
        "theorem": name,
        "title": proof.title,
        "exact": proof.exact,
        "sizes": [{**asdict(size), "as_claimed": size.as_claimed} for size in proof.sizes],
        "checks": [{**asdict(check), "exact": check.exact} for check in proof.checks],
        "notes": list(proof.notes),
        "traces": [asdict(trace) for trace in proof.traces],
    }


def _verdict(exact: bool) -> str:
    return "yes" if exact else "NO"


def trace_text(trace: Trace, width: int) -> str:
    """Returns a trace as lines of at most ``width`` characters, where its cells allow; further columns follow below.

    >>> trace = Trace("Sums", ("3", "4", "5"), (("loop 1", ("3", "7", "9")), ("loop 2", ("3", "7", "12"))))
    >>> print(trace_text(trace, width=80))
    Sums
            3  4   5
    loop 1  3  7   9
    loop 2  3  7  12
    """
    bands = []
    for at in bands_of(trace, width):
        widths = [column_width(trace, column) for column in at]
        lines, label = [("", trace.columns), *trace.rows], label_width(trace)
        bands.append(
            "\n".join(
                "  ".join([name.ljust(label), *(cells[i].rjust(w) for i, w in zip(at, widths, strict=True))]).rstrip()
                for name, cells in lines
            )
        )
    return "\n\n".join([f"{trace.title}\n{bands[0]}", *bands[1:]])


def bands_of(trace: Trace, width: int) -> list[range]:
    """Cuts the columns into bands that fit beside the rows' names, with equally many columns where those fit too."""
    room = width - label_width(trace)
    widths = [2 + column_width(trace, column) for column in range(len(trace.columns))]
    starts, used = [0], 0
    for column, wide in enumerate(widths):
        if used + wide > room and column > starts[-1]:  # a column too wide for any band has one to itself
            starts.append(column)
            used = 0
        used += wide
    size = math.ceil(len(widths) / len(starts))
    even = range(0, len(widths), size)
    if all(sum(widths[start : start + size]) <= room for start in even):
        starts = list(even)
    return [range(*ends) for ends in itertools.pairwise([*starts, len(widths)])]


def label_width(trace: Trace) -> int:
    """Returns how many characters the longest name of a row has."""
    return max(len(name) for name, _ in trace.rows)


def column_width(trace: Trace, column: int) -> int:
    """Returns how many characters the longest cell of a column has."""
    return max(len(cells[column]) for cells in (trace.columns, *(cells for _, cells in trace.rows)))


def comparison_table(comparison: HopComparison, run: str) -> Table:
    """Returns a table of how often the answer after each loop is right for each hop count, built model first."""
    title = f"Accuracy by hop count, if the model stopped after each loop; {comparison.examples} examples"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("after")
    for hops in comparison.hops:
        table.add_column(f"{hops} hop{'s' * (hops > 1)}", justify="right")
    for name, model in (("built", comparison.built), (run, comparison.learned)):
        for after in model:
            best = max(after.accuracies)
            cells = [Text(f"{a:.0%}", style="bold" if a == best else "") for a in after.accuracies]
            table.add_row(f"{name}, loop {after.loops}", *cells)
        table.add_section()
    return table
