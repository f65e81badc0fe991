"""loopt reproduce EXPERIMENT, status, table"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from loopt.commands.parsing import choose, parse_options
from loopt.commands.train import report_stop
from loopt.errors import InputError
from loopt.files import explain_os_errors
from loopt.plan import LoopPlan
from loopt.report import sheet as sheets
from loopt.report.comparison import terminal_table
from loopt.report.curves import draw_by_difficulty, draw_by_loops, require_matplotlib
from loopt.reproduce.catalogue import EXPERIMENTS
from loopt.reproduce.experiment import Experiment, Job, Scale, jobs_of
from loopt.reproduce.quick import QuickResult, claim, quick
from loopt.reproduce.ray_launcher import run_on_ray
from loopt.reproduce.sweep import Places, run_locally, state_of
from loopt.reproduce.table import build_sheet, by_difficulty, by_loops
from loopt.training import Session, presets

USAGE = """\
usage: loopt reproduce quick [options]
       loopt reproduce addition | phop | phop-uniform | igsm | group | loops [options]
       loopt reproduce status [options]
       loopt reproduce table NAME [options]

Train the models behind a table or figure and show ours beside the paper's.

  quick          p-hop on a laptop: (1⊗1), (1⊗4) and (4⊗1), a table and a page
  addition       Table 1, left: the sum of n numbers of 3 digits
  phop           Table 1, right: p-hop induction, planted as the paper's text describes it
  phop-uniform   the same with letters drawn independently
  igsm           Table 2: symbolic grade-school problems
  group          words in S5 and A5, the problem of Theorem 5.1
  loops          p-hop and i-GSM with 1 to 24 loops, trained with 6 and with a random number
  status         what is finished and what is missing, of all of them
  table          a table again, from the files in results/ alone

--scale cpu is a miniature that ends in minutes; short has the paper's model and task and fewer steps; paper is the
appendix's setting. For example:

  loopt reproduce phop --scale short --time-limit 1500
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


@dataclass(frozen=True)
class ExperimentOptions:
    scale: Scale = "cpu"
    """cpu: a miniature; short: the paper's model and task, fewer steps; paper: the appendix's setting."""
    rows: tuple[LoopPlan, ...] = ()
    """Only these rows, such as 1x6 6x1; all unless given."""
    seeds: int | None = None
    """How many seeds of every row; the paper's number at scale paper, else one."""
    together: int = 1
    """With the local launcher, how many runs to train at a time. Small models leave a GPU half idle: several then take
    clearly less than one after the other."""
    launcher: Literal["local", "ray"] = "local"
    """local: in this process; ray: side by side, on the Ray cluster that RAY_ADDRESS names or that runs here,
    else on one that is started here and ends with the command. Every node needs loopt, and must see the directories of
    runs and results under the same path. A run whose worker dies goes on from its last checkpoint in another."""
    gpus_per_run: float = 1.0
    """With ray, the share of a GPU that a run takes, where the cluster has any; 0 trains on the CPU. On the CPU a run
    takes one core."""
    places: Annotated[Places, tyro.conf.arg(name="")] = field(default_factory=Places)
    session: Annotated[Session, tyro.conf.arg(name="")] = field(default_factory=Session)


@dataclass(frozen=True)
class StatusOptions:
    """What is finished and what is missing. For example:

    loopt reproduce status --scale short
    """

    scale: Scale = "cpu"
    places: Annotated[Places, tyro.conf.arg(name="")] = field(default_factory=Places)


@dataclass(frozen=True)
class TableOptions:
    """A table from the result files alone. For example:

    loopt reproduce table phop --scale short --format markdown
    """

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """Which experiment."""
    scale: Scale = "cpu"
    format: Literal["terminal", "markdown", "latex"] = "terminal"
    results: Path = Path("results")


def main(arguments: list[str]) -> int:
    chosen = choose(arguments, USAGE, "experiment", ["quick", *EXPERIMENTS, "status", "table"])
    if chosen is None:
        return 0
    match chosen:
        case "quick", rest:
            return _quick(parse_options(QuickOptions, rest, "loopt reproduce quick"))
        case "status", rest:
            return _status(parse_options(StatusOptions, rest, "loopt reproduce status"))
        case "table", rest:
            return _table(parse_options(TableOptions, rest, "loopt reproduce table"))
    name, rest = chosen
    prog = f"loopt reproduce {name}"
    description = (
        f"{EXPERIMENTS[name].title}: train every row that is not finished yet, and show the table. Run again, it goes "
        f"on where it was. For example:\n\n{prog} --scale short --rows 1x6 6x1 --time-limit 1500"
    )
    return _experiment(EXPERIMENTS[name], parse_options(ExperimentOptions, rest, prog, description=description))


def _quick(options: QuickOptions) -> int:
    done = quick(replace(presets.phop_cpu(), seed=options.seed), options.out, options.session)
    if not isinstance(done, QuickResult):
        return report_stop(done, options.out)
    console = Console()
    console.print(terminal_table(done.comparison, "3-hop induction over 32 letters"))
    console.print(claim(done.comparison), highlight=False)
    console.print(f"\nThe curves, and one instance solved loop by loop: {done.page}", highlight=False)
    return 0


def _experiment(experiment: Experiment, options: ExperimentOptions) -> int:
    require_matplotlib()
    jobs = _selected(experiment, options)
    if options.launcher == "ray":
        stopped, diverged = run_on_ray(jobs, options.places, options.session, print, options.gpus_per_run)
    else:
        stopped, diverged = run_locally(jobs, options.places, options.session, print, options.together)
    _show(experiment, options.scale, options.places)
    if stopped is not None:
        missing = sum(job.read_result(options.places.results) is None for job in jobs)
        print(f"{stopped.reason}: {missing} of {len(jobs)} runs are not finished; the same command goes on")
        return 128 + stopped.signal if stopped.signal else 0
    if diverged:
        print(f"diverged: {', '.join(diverged)}")
    return 1 if diverged else 0


def _selected(experiment: Experiment, options: ExperimentOptions) -> list[Job]:
    seeds = options.seeds if options.seeds is not None else experiment.seeds_at(options.scale)
    if seeds < 1:
        raise InputError(f"seeds={seeds}: allowed is 1 or more")
    plans = [row.plan for row in experiment.rows]
    for plan in options.rows:
        if plan not in plans:
            raise InputError(f"rows={plan}: allowed is {' | '.join(map(str, plans))}")
    return [
        job for job in jobs_of(experiment, options.scale, seeds) if not options.rows or job.row.plan in options.rows
    ]


def _show(experiment: Experiment, scale: Scale, places: Places) -> None:
    """Print the table, and write it beside the results in the other forms."""
    sheet = build_sheet(experiment, scale, places.results)
    Console().print(sheets.terminal(sheet))
    folder = places.results / experiment.name / scale
    with explain_os_errors(f"write {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table.md").write_text(sheets.markdown(sheet), encoding="utf-8")
        (folder / "table.tex").write_text(sheets.latex(sheet), encoding="utf-8")
        sheets.draw(sheet, folder / "table.png")
        written = ["table.md", "table.tex", "table.png"]
        if curves := by_loops(experiment, scale, places.results):
            draw_by_loops(curves, experiment.rows[0].plan.blocks[0].loops, folder / "loops.png")
            written.append("loops.png")
        if graded := by_difficulty(experiment, scale, places.results):
            draw_by_difficulty(graded, folder / "difficulty.png")
            written.append("difficulty.png")
    print(f"Also as {', '.join(written)} in {folder}")


def _status(options: StatusOptions) -> int:
    table = Table(title=f"Scale {options.scale}", title_justify="left")
    for column in ("experiment", "run", "state"):
        table.add_column(column)
    for experiment in EXPERIMENTS.values():
        for job in jobs_of(experiment, options.scale, experiment.seeds_at(options.scale)):
            state = state_of(job, options.places)
            style = "green" if state == "finished" else "dim" if state == "missing" else "yellow"
            table.add_row(experiment.name, job.name, state, style=style)
    Console().print(table)
    return 0


def _table(options: TableOptions) -> int:
    if options.name not in EXPERIMENTS:
        raise InputError(f"experiment {options.name!r} is not known; allowed are {', '.join(EXPERIMENTS)}")
    sheet = build_sheet(EXPERIMENTS[options.name], options.scale, options.results)
    match options.format:
        case "terminal":
            Console().print(sheets.terminal(sheet))
        case "markdown":
            print(sheets.markdown(sheet), end="")
        case "latex":
            print(sheets.latex(sheet), end="")
    return 0
