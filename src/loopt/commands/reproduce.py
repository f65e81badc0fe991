"""loopt reproduce EXPERIMENT, status, table"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.table import Table

from loopt.commands.parsing import choose, parse_options
from loopt.commands.reproduce_language import LanguageOptions, describe_language, run_language
from loopt.commands.sweeping import ExperimentOptions, chosen_jobs, rows_named, run_sweep, say
from loopt.commands.train import FOR_TEXT, report_stop
from loopt.errors import InputError, not_known
from loopt.report import sheet as sheets
from loopt.report.comparison import terminal_table
from loopt.report.figures import require_matplotlib
from loopt.report.screen import printable, screen
from loopt.reproduce.catalogue import EXPERIMENTS, LANGUAGE
from loopt.reproduce.experiment import Experiment, Scale, jobs_of
from loopt.reproduce.quick import QuickResult, claim, quick
from loopt.reproduce.rendering import build_sheets, write_experiment
from loopt.reproduce.sweep import Folders, status_of
from loopt.training import Session, presets

USAGE = """\
usage: loopt reproduce quick [options]
       loopt reproduce addition | addition-lengths | phop | phop-uniform [options]
       loopt reproduce igsm | igsm-any | igsm-even [options]
       loopt reproduce group | group-growing | loops | more-loops [options]
       loopt reproduce language | language-rates | language-beyond | regularization | depth-scaling [options]
       loopt reproduce status [options]
       loopt reproduce table NAME [options]

Train the models behind a table or figure and show ours beside the paper's.

  quick              p-hop on a laptop: (1⊗1), (1⊗4) and (4⊗1), a table and a page
  addition           Table 1, left: the sum of n numbers of 3 digits
  addition-lengths   the sum of as many numbers as no training example has, five ways
  phop               Table 1, right: p-hop induction, planted as the paper's text describes it
  phop-uniform       the same with letters drawn independently
  igsm               Table 2: symbolic grade-school problems, as long as the cited generator's
  igsm-any           the same with any statement asked for, as the paper words it
  igsm-even          the same with every number of needed statements equally likely
  group              words in S5 and A5, the problem of Theorem 5.1
  loops              p-hop and i-GSM with 1 to 24 loops, trained with 6 and with a random number
  group-growing      words in S5 by one looped layer, with loops and with words that grow while it trains
  more-loops         more hops than in training by more loops: a hop for each
  language           Tables 3 and 5 to 8, Figures 2 and 7: perplexity beside closed book, open book, math and primitives
  language-rates     (24⊗1) and (4⊗6) at half, once and twice the rate, to be compared by validation perplexity
  language-beyond    (4⊗6) with injection and with a residual factor, and 24 layers that grow (MidAS)
  regularization     Table 4, Figures 5 and 6: 24 layers drawn towards 4, 6, 8 or 12 looped ones
  depth-scaling      Figure 3: (4⊗L) and (4L⊗1) for L = 1 to 12
  status             what is finished and what is missing, of all of them
  table              a table and its figures again, from the result files alone

--scale cpu is a miniature that ends in minutes; short has the paper's sizes and a recipe of ours; paper is the
appendix's setting. Language models train on text that --data names. Results go to runs/results; `status` and `table`
show them beside the project's own, which are in results/. For example:

  loopt reproduce phop --scale cpu --rows 1x1 1x6
  loopt reproduce phop --scale short --time-limit 1500
  loopt reproduce language --scale cpu
"""

FIRST = ("scale", "rows", "seeds", "together", "launcher", "runs", "results", "device", "threads", "time-limit")
FOR_LONG_RUNS = ("recompute", "keep", "log")
"""Options of a session that the demo has no use for."""
PROJECT_RESULTS = Path("results")  # in a clone: the results behind the project's documents


@dataclass(frozen=True)
class QuickOptions:
    """On p-hop, train one layer, one layer looped 4 times, and 4 layers; print the table and write a page with the
    curves and one example solved loop by loop. The same command resumes where it was stopped. For example:

    loopt reproduce quick

    loopt reproduce quick --out runs/quick --seed 1

    loopt reproduce quick --device cpu --threads 1 --time-limit 60
    """

    out: Path = Path("runs/quick")
    """Where the runs and the page go."""
    seed: int = 0
    """Seed of the starting weights and of the training examples."""
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

    loopt reproduce table phop --scale short --results results --draw figures
    """

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """Which experiment."""
    scale: Scale = "cpu"
    """Which runs: cpu, short or paper."""
    format: Literal["terminal", "markdown", "latex"] = "terminal"
    """How to print it."""
    rows: tuple[str, ...] = ()
    """Only these rows, by plan or by name, such as 6x1, compared on the seeds that they share; all unless given."""
    results: tuple[Path, ...] = (Folders.results, PROJECT_RESULTS)
    """Where the result files are; a table for each folder that has any."""
    draw: Path | None = None
    """Also write the table as Markdown and LaTeX, and every figure as SVG and PNG, into this folder."""


def main(arguments: list[str]) -> int:
    chosen = choose(arguments, USAGE, "experiment", ["quick", *EXPERIMENTS, *LANGUAGE, "status", "table"])
    if chosen is None:
        return 0
    if any(word == "--rows" and after.startswith("--") for word, after in pairwise([*arguments, "--"])):
        raise InputError("--rows: which? Give one or more after it, such as 6x1")  # and not all of them, for hours
    match chosen:
        case "quick", rest:
            return _quick(
                parse_options(QuickOptions, rest, "loopt reproduce quick", without=(*FOR_TEXT, *FOR_LONG_RUNS))
            )
        case "status", rest:
            return _status(parse_options(StatusOptions, rest, "loopt reproduce status"))
        case "table", rest:
            return _table(parse_options(TableOptions, rest, "loopt reproduce table"))
    name, rest = chosen
    prog = f"loopt reproduce {name}"
    if name in LANGUAGE:
        return run_language(name, _language_options(name, rest))
    description = (
        f"{EXPERIMENTS[name].title}: train every row that is not finished yet, and show the table. The same command "
        f"resumes where it was stopped. For example:\n\n{prog}\n\n{prog} --scale cpu --rows 1x1 1x6 --seeds 3\n\n"
        f"{prog} --scale short --rows 1x6 6x1 --time-limit 1500"
    )
    options = parse_options(ExperimentOptions, rest, prog, FIRST, FOR_TEXT, description=description)
    return _experiment(EXPERIMENTS[name], options)


def _language_options(name: str, arguments: list[str]) -> LanguageOptions:
    first = ("data", "data-dir", *FIRST)
    return parse_options(
        LanguageOptions, arguments, f"loopt reproduce {name}", first, description=describe_language(name)
    )


def _quick(options: QuickOptions) -> int:
    done = quick(replace(presets.phop_cpu(), seed=options.seed), options.out, options.session, say)
    if not isinstance(done, QuickResult):
        return report_stop(done, options.out)
    console = screen()
    console.print(terminal_table(done.comparison, "3-hop induction over 32 letters"))
    console.print(claim(done.comparison))
    console.print(f"\nThe curves, and one instance solved loop by loop: {printable(done.page)}")
    return 0


def _experiment(experiment: Experiment, options: ExperimentOptions) -> int:
    require_matplotlib()
    jobs = chosen_jobs(experiment, options)
    return run_sweep(jobs, options, lambda: _show(experiment, options.scale, options.folders))


def _show(experiment: Experiment, scale: Scale, folders: Folders) -> None:
    """Prints the table, and writes it and the figures beside the results."""
    screen().print(sheets.terminal(build_sheets(experiment, scale, folders.results)["table"]))
    folder = folders.results / experiment.name / scale
    written = write_experiment(experiment, scale, folders.results, folder)
    print(f"Also as {', '.join(path.name for path in written)} in {printable(folder)}")


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
    for experiment in (EXPERIMENTS | LANGUAGE).values():
        for job in jobs_of(experiment, options.scale, experiment.seeds_at(options.scale)):
            here, theirs = status_of(job, options.folders), status_of(job, project)
            style = "green" if here.startswith("finished") else "dim" if here == "missing" else "yellow"
            table.add_row(experiment.name, job.name, here, theirs, style=style)
    screen().print(table)
    return 0


def _table(options: TableOptions) -> int:
    every = EXPERIMENTS | LANGUAGE
    if options.name not in every:
        raise not_known("experiment", options.name, every)
    experiment = rows_named(every[options.name], options.rows)
    found = [path for path in options.results if any((path / experiment.folder / options.scale).glob("*.json"))]
    if options.draw is not None:
        require_matplotlib()
        if len(found) != 1:
            raise InputError(
                f"draw={options.draw}: {len(found)} of the folders {', '.join(map(str, options.results))} have results "
                f"of {options.name} at scale {options.scale}; allowed is one, as --results FOLDER chooses it"
            )
    for folder in found or options.results[:1]:
        for sheet in build_sheets(experiment, options.scale, folder).values():
            titled = replace(sheet, title=f"{sheet.title}, from {printable(folder)}")
            if options.format == "terminal":
                screen().print(sheets.terminal(titled))
            else:
                print(sheets.markdown(titled) if options.format == "markdown" else sheets.latex(titled))
        if options.draw is not None:
            written = write_experiment(experiment, options.scale, folder, options.draw)
            print(f"Also as {', '.join(path.name for path in written)} in {printable(options.draw)}")
    return 0
