"""What commands that train the rows of a table share: their options, the choice of rows, how the sweep ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import tyro

from loopt.errors import InputError, PlanError, require
from loopt.plan import LoopPlan
from loopt.report.screen import printable
from loopt.reproduce.experiment import Experiment, Job, Row, Scale, jobs_of
from loopt.reproduce.ray_launcher import run_on_ray
from loopt.reproduce.sweep import Folders, is_finished, run_locally
from loopt.reproduce.table import MOST_SEEDS
from loopt.training import Session


@dataclass(frozen=True)
class ExperimentOptions:
    """Which runs of an experiment to train, and how."""

    scale: Scale = "cpu"
    """cpu: a miniature; short: the paper's sizes, a shorter recipe; paper: the appendix's setting."""
    rows: tuple[str, ...] = ()
    """Only these rows, by plan or by name, such as 6x1; all unless given."""
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


def say(text: str) -> None:
    for line in text.splitlines():
        print(printable(line))


def rows_named(experiment: Experiment, names: Sequence[str]) -> Experiment:
    """Returns the experiment with these rows only, or with all where none is given; a row goes by its name or plan."""
    for name in names:
        if not any(_is_named(row, name) for row in experiment.rows):
            raise InputError(f"rows={name[:80]}: allowed is {' | '.join(row.name for row in experiment.rows)}")
    chosen = [row for row in experiment.rows if not names or any(_is_named(row, name) for name in names)]
    return replace(experiment, rows=tuple(chosen))


def _is_named(row: Row, name: str) -> bool:
    if name == row.name:
        return True
    try:
        return not row.regularizer.active and not row.recipe and LoopPlan.parse(name) == row.plan
    except PlanError:
        return False


def chosen_jobs(experiment: Experiment, options: ExperimentOptions) -> list[Job]:
    """Returns the runs of the chosen rows and seeds."""
    seeds = options.seeds if options.seeds is not None else experiment.seeds_at(options.scale)
    require(1 <= seeds <= MOST_SEEDS, "seeds", seeds, f"1 to {MOST_SEEDS}", InputError)
    return jobs_of(rows_named(experiment, options.rows), options.scale, seeds)


def run_sweep(jobs: list[Job], options: ExperimentOptions, show: Callable[[], None]) -> int:
    """Trains the runs that have no result yet, shows what there is, and returns the exit code."""
    if options.launcher == "ray":
        stopped, diverged = run_on_ray(jobs, options.folders, options.session, say, options.gpus_per_run)
    else:
        stopped, diverged = run_locally(jobs, options.folders, options.session, say, options.together)
    show()
    if stopped is not None:
        missing = sum(not is_finished(job, options.folders) for job in jobs)
        print(f"{stopped.reason}: {missing} of {len(jobs)} runs are not finished; the same command resumes")
        return 128 + stopped.signal if stopped.signal else 0
    if diverged:
        print(f"diverged: {', '.join(diverged)}")
    return 1 if diverged else 0
