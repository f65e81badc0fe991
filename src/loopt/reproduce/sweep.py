"""Running the jobs of an experiment in this process, going on with whatever is there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from loopt.devices import pick_device
from loopt.errors import InputError
from loopt.evaluation import mean_score, score_each
from loopt.reproduce.experiment import Job
from loopt.runs import Run, checkpoint, codec
from loopt.training import Company, DivergedError, Outcome, Session, train, train_stepwise
from loopt.training.progress import ProgressLines
from loopt.training.signals import noted_signals, stopped_by

MOST_EXAMPLES = 8192
"""For each number of loops, and for each difficulty."""


@dataclass(frozen=True)
class Places:
    """Where an experiment leaves things: ``runs`` can be thrown away when ``results`` are there."""

    runs: Path = Path("runs")
    results: Path = Path("results")

    def run_of(self, job: Job) -> Path:
        return self.runs / job.experiment.name / job.scale / job.name


def run_locally(
    jobs: Sequence[Job], places: Places, session: Session, say: Callable[[str], None], together: int = 1
) -> tuple[Outcome | None, list[str]]:
    """Train every job that has no result yet, ``together`` of them at a time, within the session's time limit. Where
    the sweep was stopped, the outcome that stopped it; and the jobs that diverged, each of which leaves the others
    alone."""
    if together < 1:
        raise InputError(f"together={together}: allowed is 1 or more")
    with noted_signals() as caught, ProgressLines(session.progress) as lines:
        sweep = _Sweep(jobs, places, session, say, Company(caught, lines))
        sweep.run(together)
        return sweep.stopped, sweep.diverged


class _Sweep:
    """Jobs that take turns, a step each; on a GPU their steps are only queued, so they run side by side."""

    def __init__(
        self, jobs: Sequence[Job], places: Places, session: Session, say: Callable[[str], None], company: Company
    ) -> None:
        self.waiting = deque(job for job in jobs if job.read_result(places.results) is None)
        self.places, self.session, self.say, self.company = places, session, say, company
        self.active: dict[str, tuple[Job, Generator[None, None, Outcome]]] = {}
        self.stopped: Outcome | None = None
        self.diverged: list[str] = []

    def run(self, together: int) -> None:
        some_ran = False
        try:
            while self.active or self.waiting:
                while self.waiting and len(self.active) < together and not self.company.caught and not self.stopped:
                    # Not before the first: every call gets somewhere.
                    if some_ran and self.company.out_of_time(self.session):
                        self.stopped = Outcome(False, saved_step(self.waiting[0], self.places), "time limit")
                        break
                    self._start(self.waiting.popleft())
                    some_ran = True
                if not self.active:
                    break
                self.company.share_time(len(self.active))
                for job, steps in list(self.active.values()):
                    self._step(job, steps)
            if self.waiting and self.company.caught and self.stopped is None:
                number = self.company.caught[0]
                step = saved_step(self.waiting[0], self.places)
                self.stopped = Outcome(False, step, stopped_by(number), signal=number)
        finally:
            for _, steps in self.active.values():
                steps.close()

    def _start(self, job: Job) -> None:
        """With its first step, before which it is built and compiled: so it is known what time is left for the next."""
        steps = train_stepwise(job.config, self.places.run_of(job), self.session, self.company, label=job.name)
        self.active[job.name] = job, steps
        self.company.share_time(len(self.active))
        self._step(job, steps)

    def _step(self, job: Job, steps: Generator[None, None, Outcome]) -> None:
        try:
            next(steps)
            return
        except StopIteration as end:
            outcome: Outcome = end.value
        except DivergedError as error:
            self.say(str(error))
            self.diverged.append(job.name)
            del self.active[job.name]
            return
        del self.active[job.name]
        if outcome.finished:
            keep_result(job, self.places, self.session)
            self.say(f"{job.name}: {outcome.reason} at step {outcome.step}, accuracy {outcome.result['accuracy']:.1%}")
        else:
            self.say(f"{job.name}: {outcome.reason}, saved at step {outcome.step}")
        if (not outcome.finished or outcome.signal) and self.stopped is None:
            self.stopped = outcome


def run_job(job: Job, places: Places, session: Session) -> Outcome:
    """Train one job, and keep its result when it is finished."""
    outcome = train(job.config, places.run_of(job), session, label=job.name)
    if outcome.finished:
        keep_result(job, places, session)
    return outcome


def keep_result(job: Job, places: Places, session: Session) -> None:
    run = Run.load(places.run_of(job))
    further = _measured_further(run, job.experiment.loops_to_test, pick_device(session.device))
    job.write_result(places.results, result_of(job, run) | further)


def _measured_further(run: Run, loops: Sequence[int], device: torch.device) -> dict[str, dict[str, float]]:
    """Accuracy of the best checkpoint with each number of loops, and on each difficulty of its task, if any."""
    task, further = run.config.task, {}
    if not (loops or task.difficulties):
        return {}
    model = run.load_model("best").to(device)
    examples, batch = min(run.config.test_examples, MOST_EXAMPLES), run.config.batch_size
    if loops:
        scores = {n: score_each(model, task.tests, "test", examples, batch, n) for n in loops}
        further["by_loops"] = {str(n): mean_score(score).accuracy for n, score in scores.items()}
    if task.difficulties:
        graded = score_each(model, task.difficulties, "test", examples, batch)
        further["by_difficulty"] = {name: score.accuracy for name, score in graded.items()}
    return further


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
