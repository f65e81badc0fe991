"""loopt reproduce EXPERIMENT, status, table"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.table import Table

from loopt.commands.parsing import choose, parse_options
from loopt.commands.train import report_stop
from loopt.errors import InputError, require
from loopt.files import explain_os_errors
from loopt.plan import LoopPlan
from loopt.report import sheet as sheets
from loopt.report.by_loops import draw_by_loops
from loopt.report.comparison import terminal_table
from loopt.report.curves import draw_by_difficulty, require_matplotlib
from loopt.report.screen import printable, screen
from loopt.reproduce.catalogue import EXPERIMENTS
from loopt.reproduce.experiment import Experiment, Job, Scale, jobs_of
from loopt.reproduce.quick import QuickResult, claim, quick
from loopt.reproduce.ray_launcher import run_on_ray
from loopt.reproduce.sweep import Folders, run_locally, status_of
from loopt.reproduce.table import MOST_SEEDS, build_sheet, by_difficulty, by_loops
from loopt.training import Session, presets

USAGE = """\
usage: loopt reproduce quick [options]
       loopt reproduce addition | phop | phop-uniform | igsm | igsm-even | group | loops [options]
       loopt reproduce status [options]
       loopt reproduce table NAME [options]

Train the models behind a table or figure and show ours beside the paper's.

  quick          p-hop on a laptop: (1⊗1), (1⊗4) and (4⊗1), a table and a page
  addition       Table 1, left: the sum of n numbers of 3 digits
  phop           Table 1, right: p-hop induction, planted as the paper's text describes it
  phop-uniform   the same with letters drawn independently
  igsm           Table 2: symbolic grade-school problems, as long as the cited generator's
  igsm-even      the same with every number of needed statements equally likely
  group          words in S5 and A5, the problem of Theorem 5.1
  loops          p-hop and i-GSM with 1 to 24 loops, trained with 6 and with a random number
  status         what is finished and what is missing, of all of them
  table          a table again, from the result files alone

--scale cpu is a miniature that ends in minutes; short has the paper's sizes and a recipe of ours; paper is the
appendix's setting. Results go to runs/results; `status` and `table` show them beside the project's own, which are in
results/. For example:

  loopt reproduce phop --scale cpu --rows 1x1 1x6
  loopt reproduce phop --scale short --time-limit 1500
"""

PROJECT_RESULTS = Path("results")  # in a clone: the results behind the project's documents


@dataclass(frozen=True)
class QuickOptions:
    """On p-hop, train one layer, one layer looped 4 times, and 4 layers; print the table and write a page with the
    curves and one example solved loop by loop. The same command resumes where it was stopped. For example:

    loopt reproduce quick --out runs/quick --seed 1
    """

    out: Path = Path("runs/quick")
    """Where the runs and the page go."""
    seed: int = 0
    """Seed of the starting weights and of the training examples."""
    session: Annotated[Session, tyro.conf.arg(name="")] = field(default_factory=Session)


@dataclass(frozen=True)
class ExperimentOptions:
    """Which runs of an experiment to train, and how."""

    scale: Scale = "cpu"
    """cpu: a miniature; short: the paper's sizes, a shorter recipe; paper: the appendix's setting."""
    rows: tuple[LoopPlan, ...] = ()
    """Only these rows, such as 1x6 6x1; all unless given."""
    seeds: int | None = None
    """How many seeds of every row; the paper's number at scale paper, else one."""
    together: int = 1
    """With the local launcher, how many runs to train at a time: small models leave a GPU half idle."""
    launcher: Literal["local", "ray"] = "local"
    """local: in this process; ray: side by side, on the Ray cluster of RAY_ADDRESS or on this machine, else on one that
    ends with the command. Every node needs loopt, and must see the directories of runs and results under the same path.
    A run whose worker dies resumes in another from its last checkpoint."""
    gpus_per_run: float = 1.0
    """With ray, the share of a GPU that a run takes, or 0; without a GPU it takes one CPU core."""
    folders: Annotated[Folders, tyro.conf.arg(name="")] = field(default_factory=Folders)
    session: Annotated[Session, tyro.conf.arg(name="")] = field(default_factory=Session)


@dataclass(frozen=True)
class StatusOptions:
    """Print which runs are finished or missing, here and in the project's own results. For example:

    loopt reproduce status --scale short
    """

    scale: Scale = "cpu"
    """Which runs: cpu, short or paper."""
    folders: Annotated[Folders, tyro.conf.arg(name="")] = field(default_factory=Folders)


@dataclass(frozen=True)
class TableOptions:
    """Print a table from the result files, those of runs here and the project's own. For example:

    loopt reproduce table phop --scale short --format markdown
    loopt reproduce table phop --scale short --results results
    """

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """Which experiment."""
    scale: Scale = "cpu"
    """Which runs: cpu, short or paper."""
    format: Literal["terminal", "markdown", "latex"] = "terminal"
    """How to print it."""
    rows: tuple[LoopPlan, ...] = ()
    """Only these rows, compared on the seeds that they share; all unless given."""
    results: tuple[Path, ...] = (Folders.results, PROJECT_RESULTS)
    """Where the result files are; a table for each folder that has any."""


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
        f"{EXPERIMENTS[name].title}: train every row that is not finished yet, and show the table. The same command "
        f"resumes where it was stopped. For example:\n\n{prog} --scale short --rows 1x6 6x1 --time-limit 1500"
    )
    return _experiment(EXPERIMENTS[name], parse_options(ExperimentOptions, rest, prog, description=description))


def _say(text: str) -> None:
    for line in text.splitlines():
        print(printable(line))


def _quick(options: QuickOptions) -> int:
    done = quick(replace(presets.phop_cpu(), seed=options.seed), options.out, options.session, _say)
    if not isinstance(done, QuickResult):
        return report_stop(done, options.out)
    console = screen()
    console.print(terminal_table(done.comparison, "3-hop induction over 32 letters"))
    console.print(claim(done.comparison))
    console.print(f"\nThe curves, and one instance solved loop by loop: {printable(done.page)}")
    return 0


def _experiment(experiment: Experiment, options: ExperimentOptions) -> int:
    require_matplotlib()
    jobs = _selected(experiment, options)
    if options.launcher == "ray":
        stopped, diverged = run_on_ray(jobs, options.folders, options.session, _say, options.gpus_per_run)
    else:
        stopped, diverged = run_locally(jobs, options.folders, options.session, _say, options.together)
    _show(experiment, options.scale, options.folders)
    if stopped is not None:
        missing = sum(job.read_result(options.folders.results) is None for job in jobs)
        print(f"{stopped.reason}: {missing} of {len(jobs)} runs are not finished; the same command resumes")
        return 128 + stopped.signal if stopped.signal else 0
    if diverged:
        print(f"diverged: {', '.join(diverged)}")
    return 1 if diverged else 0


def _selected(experiment: Experiment, options: ExperimentOptions) -> list[Job]:
    seeds = options.seeds if options.seeds is not None else experiment.seeds_at(options.scale)
    require(1 <= seeds <= MOST_SEEDS, "seeds", seeds, f"1 to {MOST_SEEDS}", InputError)
    return jobs_of(_with_rows(experiment, options.rows), options.scale, seeds)


def _with_rows(experiment: Experiment, plans: Sequence[LoopPlan]) -> Experiment:
    """Returns the experiment with these rows only, or with all where none is given."""
    known = [row.plan for row in experiment.rows]
    for plan in plans:
        if plan not in known:
            raise InputError(f"rows={plan}: allowed is {' | '.join(map(str, known))}")
    return replace(experiment, rows=tuple(row for row in experiment.rows if not plans or row.plan in plans))


def _show(experiment: Experiment, scale: Scale, folders: Folders) -> None:
    """Prints the table, and writes it and the figures beside the results."""
    sheet = build_sheet(experiment, scale, folders.results)
    screen().print(sheets.terminal(sheet))
    folder = folders.results / experiment.name / scale
    with explain_os_errors(f"write {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table.md").write_text(sheets.markdown(sheet), encoding="utf-8")
        (folder / "table.tex").write_text(sheets.latex(sheet), encoding="utf-8")
        sheets.draw(sheet, folder / "table.png")
        written = ["table.md", "table.tex", "table.png"]
        if curves := by_loops(experiment, scale, folders.results):
            percents = {name: {n: 100 * share for n, share in curve.items()} for name, curve in curves.items()}
            drawn = draw_by_loops(percents, experiment.rows[0].plan.blocks[0].loops, folder)
            written += [path.name for path in drawn]
        if graded := by_difficulty(experiment, scale, folders.results):
            draw_by_difficulty(graded, folder / "difficulty.png")
            written.append("difficulty.png")
    print(f"Also as {', '.join(written)} in {printable(folder)}")


def _status(options: StatusOptions) -> int:
    table = Table(title=f"Scale {options.scale}", title_justify="left")
    for column in (
        "experiment",
        "run",
        f"here, {printable(options.folders.results)}",
        f"the project's, {PROJECT_RESULTS}",
    ):
        table.add_column(column)
    project = replace(options.folders, results=PROJECT_RESULTS, runs=PROJECT_RESULTS)
    for experiment in EXPERIMENTS.values():
        for job in jobs_of(experiment, options.scale, experiment.seeds_at(options.scale)):
            here, theirs = status_of(job, options.folders), status_of(job, project)
            style = "green" if here.startswith("finished") else "dim" if here == "missing" else "yellow"
            table.add_row(experiment.name, job.name, here, theirs, style=style)
    screen().print(table)
    return 0


def _table(options: TableOptions) -> int:
    if options.name not in EXPERIMENTS:
        raise InputError(f"experiment {options.name!r} is not known; allowed are {', '.join(EXPERIMENTS)}")
    experiment = _with_rows(EXPERIMENTS[options.name], options.rows)
    measured = [folder for folder in options.results if any((folder / experiment.name / options.scale).glob("*.json"))]
    for folder in measured or options.results[:1]:
        sheet = build_sheet(experiment, options.scale, folder)
        sheet = replace(sheet, title=f"{sheet.title}, from {printable(folder)}")
        if options.format == "terminal":
            screen().print(sheets.terminal(sheet))
        else:
            print(sheets.markdown(sheet) if options.format == "markdown" else sheets.latex(sheet))
    return 0
