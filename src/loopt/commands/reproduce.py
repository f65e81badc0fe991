"""loopt reproduce EXPERIMENT"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from loopt.commands.parsing import choose, parse_options
from loopt.commands.train import report_stop
from loopt.report.comparison import terminal_table
from loopt.reproduce.quick import QuickResult, claim, quick
from loopt.training import Session, presets

USAGE = """\
usage: loopt reproduce quick [options]

Train the models behind a table or figure and show what they give.

  quick    p-hop on a laptop: (1⊗1), (1⊗4) and (4⊗1), a table and a page; for example:

  loopt reproduce quick --out runs/quick --seed 1
"""


@dataclass(frozen=True)
class QuickOptions:
    """On p-hop, train one layer, the same layer looped 4 times, and 4 layers; print the table and write a page with the
    curves and one instance solved loop by loop. Run again, it goes on where it was. For example:

    loopt reproduce quick --out runs/quick --seed 1
    """

    out: Path = Path("runs/quick")
    """Where the runs and the page go."""
    seed: int = 0
    """Of the starting weights and of the training examples."""
    session: Annotated[Session, tyro.conf.arg(name="")] = field(default_factory=Session)


def main(arguments: list[str]) -> int:
    chosen = choose(arguments, USAGE, "experiment", ["quick"])
    if chosen is None:
        return 0
    options = parse_options(QuickOptions, chosen[1], "loopt reproduce quick")
    done = quick(replace(presets.phop_cpu(), seed=options.seed), options.out, options.session)
    if not isinstance(done, QuickResult):
        return report_stop(done, options.out)
    console = Console()
    console.print(terminal_table(done.comparison, "3-hop induction over 32 letters"))
    console.print(claim(done.comparison), highlight=False)
    console.print(f"\nThe curves, and one instance solved loop by loop: {done.page}", highlight=False)
    return 0
