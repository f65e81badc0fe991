"""loopt tasks list, loopt tasks show NAME, loopt tasks audit NAME"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.table import Table

from loopt import tasks
from loopt.commands.parsing import choose, first_line, parse_options
from loopt.errors import InputError
from loopt.report.screen import screen
from loopt.source import Split
from loopt.tasks.audit import Audit, audit

USAGE = """\
usage: loopt tasks list
       loopt tasks show NAME [settings]
       loopt tasks audit NAME [settings]

`loopt tasks show NAME --help` lists a task's settings; for example:

  loopt tasks show phop --p 3 --n 24
  loopt tasks audit phop --p 3 --n 24 --examples 10000
  loopt tasks show parity --import my_task.py

--import makes the tasks of a script or module of your own known to any command (docs/own-task.md).
"""


@dataclass(frozen=True)
class ShowOptions:
    task: Annotated[tasks.Task, tyro.conf.arg(name="")]
    index: int = 0
    """Which example of the split."""
    seed: int = 0
    """Seed of the examples."""
    split: Split = "test"
    """train, validation or test."""


@dataclass(frozen=True)
class AuditOptions:
    task: Annotated[tasks.Task, tyro.conf.arg(name="")]
    examples: int = 100_000
    """Number of train examples, and as many of each test."""
    seed: int = 0
    """Seed of the examples."""
    markdown: bool = False
    """Print the table as Markdown."""


def main(arguments: list[str]) -> int:
    action = choose(arguments, USAGE, "tasks command", ["list", "show", "audit"])
    if action and action[1][:1] in (["-h"], ["--help"], ["--help-all"]):
        print(USAGE, end="")
    elif action and action[0] == "list":
        if action[1]:
            raise InputError(f"tasks list: {action[1][0]!r} is not known; it takes no options")
        for name, kind in tasks.known().items():
            print(f"{name:12} {_about(kind)}".rstrip())
    elif action:
        task = choose(action[1], USAGE, "task", tasks.names())
        if task:
            (_show if action[0] == "show" else _audit)(*task)
    return 0


def _about(kind: type[tasks.Task]) -> str:
    """Returns the first line of a task's docstring, or of its module's where a dataclass wrote the former itself."""
    written = not (kind.__doc__ or "").startswith(f"{kind.__name__}(")
    return first_line(kind if written else sys.modules[kind.__module__])


def _show(name: str, settings: list[str]) -> None:
    prog = f"loopt tasks show {name}"
    description = f"Print one instance with its answer. For example:\n\n{prog} --index 7"
    default = ShowOptions(tasks.get(name))
    options = parse_options(ShowOptions, settings, prog, default=default, description=description)
    tasks.check_examples(options.task)
    batch = options.task.sample(range(options.index, options.index + 1), options.seed, options.split)
    print(options.task.render(batch.tokens[0].tolist()))


def _audit(name: str, settings: list[str]) -> None:
    prog = f"loopt tasks audit {name}"
    description = (
        "Print how balanced a task's answers are, which examples come twice, and how often cheap shortcuts are right. "
        f"For example:\n\n{prog} --examples 10000 --markdown"
    )
    default = AuditOptions(tasks.get(name))
    options = parse_options(AuditOptions, settings, prog, default=default, description=description)
    tasks.check_examples(options.task)
    audits = audit(options.task, options.examples, options.seed)
    header = ["", *(one.test for one in audits)]
    rows = [[row, *cells] for row, cells in _audit_rows(audits).items()]
    if options.markdown:
        rule = ["---"] + ["---:"] * len(audits)
        for line in (header, rule, *rows):
            print("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |")
        return
    title = f"{name}: {options.examples} train examples, and as many of each test"
    table = Table(title=title, title_justify="left")
    for column in header:
        table.add_column(column, justify="right" if column else "left")
    for line in rows:
        table.add_row(*line)
    screen().print(table)


def _audit_rows(audits: list[Audit]) -> dict[str, list[str]]:
    several_tokens = max(one.answer_tokens for one in audits) > 1
    rows = {
        "first tokens of answers" if several_tokens else "answers": [_balance(one) for one in audits],
        "different answers": [str(one.distinct_answers) for one in audits],
        "train examples seen before": [str(one.repeated) for one in audits],
        "test examples also in train": [str(one.leaked) for one in audits],
        "chance": [f"{one.chance:.2%}" for one in audits],
    }
    return rows | {name: [f"{one.shortcuts[name]:.2%}" for one in audits] for name in audits[0].shortcuts}


def _balance(one: Audit) -> str:
    most = 5
    shown = [f"{label} {share:.1%}" for label, share in one.first_labels[:most]]
    hidden = len(one.first_labels) - most
    return ", ".join([*shown, f"{hidden} more"] if hidden > 0 else shown)
