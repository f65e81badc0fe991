"""Running the jobs of an experiment one after the other, going on with whatever is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loopt.reproduce.experiment import Job
from loopt.runs import Run, checkpoint, codec
from loopt.training import DivergedError, Outcome, Session, train


@dataclass(frozen=True)
class Places:
    """Where an experiment leaves things: ``runs`` can be thrown away when ``results`` are there."""

    runs: Path = Path("runs")
    results: Path = Path("results")

    def run_of(self, job: Job) -> Path:
        return self.runs / job.experiment.name / job.scale / job.name


def run_locally(
    jobs: Sequence[Job], places: Places, session: Session, say: Callable[[str], None]
) -> tuple[Outcome | None, list[str]]:
    """Train every job that has no result yet, within the session's time limit. Where the sweep was stopped, the
    outcome that stopped it; and the jobs that diverged, each of which leaves the others alone."""
    began = time.monotonic()
    diverged: list[str] = []
    some_ran = False
    for job in jobs:
        if job.read_result(places.results) is not None:
            continue
        left = session
        if session.time_limit is not None:
            seconds = session.time_limit - (time.monotonic() - began)
            if seconds <= 0 and some_ran:  # not before the first, so that every call gets somewhere
                return Outcome(False, saved_step(job, places), "time limit"), diverged
            left = replace(session, time_limit=max(0.0, seconds))
        some_ran = True
        try:
            outcome = run_job(job, places, left)
        except DivergedError as error:
            say(str(error))
            diverged.append(job.name)
            continue
        if not outcome.finished:
            say(f"{job.name}: {outcome.reason}, saved at step {outcome.step}")
            return outcome, diverged
        if outcome.signal:
            return outcome, diverged
        say(f"{job.name}: {outcome.reason} at step {outcome.step}, accuracy {outcome.result['accuracy']:.1%}")
    return None, diverged


def run_job(job: Job, places: Places, session: Session) -> Outcome:
    """Train one job, and keep its result when it is finished."""
    outcome = train(job.config, places.run_of(job), session, label=job.name)
    if outcome.finished:
        job.write_result(places.results, result_of(job, Run.load(places.run_of(job))))
    return outcome


def result_of(job: Job, run: Run) -> dict[str, Any]:
    """Everything a table or figure needs to know of a finished run."""
    evaluations = (line for line in run.read_metrics() if "validation_accuracy" in line)
    return {
        "experiment": job.experiment.name,
        "scale": job.scale,
        "plan": str(job.row.plan),
        "variant": job.variant,
        "seed": job.seed,
        "result": run.read_result(),
        "curve": [[line["step"], line["validation_accuracy"], round(line["seconds"], 1)] for line in evaluations],
        "config": codec.to_json(run.config),
    }


def state_of(job: Job, places: Places) -> str:
    """finished, step 1200 of 6000, or missing."""
    if job.read_result(places.results) is not None:
        return "finished"
    step = saved_step(job, places)
    return f"step {step} of {job.config.steps}" if step else "missing"


def saved_step(job: Job, places: Places) -> int:
    """The step of a job's last checkpoint; 0 where there is none."""
    return max(checkpoint.steps_in(places.run_of(job) / "checkpoints"), default=0)
