"""loopt tasks list, loopt tasks show NAME"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from loopt import tasks
from loopt.commands.parsing import choose, first_line, parse_options

USAGE = """\
usage: loopt tasks list
       loopt tasks show NAME [settings]

`loopt tasks show NAME --help` lists a task's settings; for example:

  loopt tasks show phop --p 3 --n 24
"""


@dataclass(frozen=True)
class ShowOptions:
    task: Annotated[tasks.Task, tyro.conf.arg(name="")]
    index: int = 0
    """Which example of the split."""
    seed: int = 0
    split: tasks.Split = "test"


def main(arguments: list[str]) -> int:
    action = choose(arguments, USAGE, "tasks command", ["list", "show"])
    if action and action[0] == "list":
        for name, kind in tasks.registry.items():
            print(f"{name:12} {first_line(sys.modules[kind.__module__])}")
    elif action:
        task = choose(action[1], USAGE, "task", tasks.names())
        if task:
            _show(*task)
    return 0


def _show(name: str, settings: list[str]) -> None:
    prog = f"loopt tasks show {name}"
    description = f"Print one instance with its answer. For example:\n\n{prog} --index 7"
    default = ShowOptions(tasks.get(name))
    options = parse_options(ShowOptions, settings, prog, default=default, description=description)
    batch = options.task.sample(range(options.index, options.index + 1), options.seed, options.split)
    print(options.task.render(batch.tokens[0].tolist()))
