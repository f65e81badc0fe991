"""Running the jobs of an experiment in this process, resuming whatever is there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from loopt.devices import pick_device
from loopt.errors import InputError
from loopt.reproduce.experiment import Job, told_finished
from loopt.runs import Run, checkpoint, codec
from loopt.scoring import mean_score, score_each
from loopt.tasks import Task
from loopt.training import DivergedError, Outcome, Session, train, train_stepwise
from loopt.training.clock import SharedClock
from loopt.training.progress import ProgressLines
from loopt.training.signals import catch_signals, stopped_by

MOST_EXAMPLES = 8192
"""For each number of loops, and for each difficulty."""


@dataclass(frozen=True)
class Folders:
    """Where an experiment leaves things."""

    runs: Path = Path("runs")
    """Where the runs go; they can be thrown away when their results are there."""
    results: Path = Path("runs/results")
    """Where the result files go. What is finished there is not trained again."""

    def run_of(self, job: Job) -> Path:
        """Returns the directory of a job's run."""
        return self.runs / job.experiment.name / job.scale / job.name


def unfinished(jobs: Sequence[Job], folders: Folders, say: Callable[[str], None]) -> list[Job]:
    """Returns the jobs that have no result yet, and says of the others when and by which code they were finished."""
    waiting = []
    for job in jobs:
        found = job.read_result(folders.results)
        if found is None:
            waiting.append(job)
        else:
            say(f"{job.name}: found in {job.result_path(folders.results)}, {told_finished(found['result'])}")
    return waiting


def run_locally(
    jobs: Sequence[Job], folders: Folders, session: Session, say: Callable[[str], None], together: int = 1
) -> tuple[Outcome | None, list[str]]:
    """Trains every job that has no result yet, ``together`` of them at a time, within the session's time limit. Returns
    the outcome that stopped the sweep, if any did, and the jobs that diverged, each of which leaves the others
    alone."""
    if together < 1:
        raise InputError(f"together={together}: allowed is 1 or more")
    with catch_signals() as caught, ProgressLines(session.progress) as lines:
        sweep = _Sweep(unfinished(jobs, folders, say), folders, session, say, caught, lines)
        sweep.run(together)
        return sweep.stopped, sweep.diverged


class _Sweep:
    """Jobs that take turns, a step each; on a GPU their steps are only queued, so they run side by side."""

    def __init__(
        self,
        jobs: Sequence[Job],
        folders: Folders,
        session: Session,
        say: Callable[[str], None],
        caught: list[int],
        lines: ProgressLines,
    ) -> None:
        self.waiting = deque(jobs)
        self.folders, self.session, self.say, self.caught, self.lines = folders, session, say, caught, lines
        self.clock = SharedClock()
        self.active: dict[str, tuple[Job, Generator[None, None, Outcome]]] = {}
        self.stopped: Outcome | None = None
        self.diverged: list[str] = []

    def run(self, together: int) -> None:
        some_ran = False
        try:
            while self.active or self.waiting:
                while self.waiting and len(self.active) < together and not self.caught and not self.stopped:
                    # Not before the first: every call gets somewhere.
                    if some_ran and self.clock.out_of_time(self.session.time_limit):
                        self.stopped = Outcome(False, saved_step(self.waiting[0], self.folders), "time limit")
                        break
                    self._start(self.waiting.popleft())
                    some_ran = True
                if not self.active:
                    break
                self.clock.seconds_each(len(self.active))
                for job, steps in list(self.active.values()):
                    self._step(job, steps)
            if self.waiting and self.caught and self.stopped is None:
                number = self.caught[0]
                step = saved_step(self.waiting[0], self.folders)
                self.stopped = Outcome(False, step, stopped_by(number), signal=number)
        finally:
            for _, steps in self.active.values():
                steps.close()

    def _start(self, job: Job) -> None:
        """Starts a job with its first step, before which it is built and compiled: so it is known what time is left."""
        directory, callbacks = self.folders.run_of(job), [self.lines.line(job.name)]
        steps = train_stepwise(job.config, directory, self.session, self.clock, self.caught, callbacks)
        self.active[job.name] = job, steps
        self.clock.seconds_each(len(self.active))
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
            keep_result(job, self.folders, self.session)
            self.say(f"{job.name}: {outcome.reason} at step {outcome.step}, accuracy {outcome.result['accuracy']:.1%}")
        else:
            self.say(f"{job.name}: {outcome.reason}, saved at step {outcome.step}")
        if (not outcome.finished or outcome.signal) and self.stopped is None:
            self.stopped = outcome


def run_job(job: Job, folders: Folders, session: Session) -> Outcome:
    """Trains one job, and keeps its result when it is finished."""
    outcome = train(job.config, folders.run_of(job), session, label=job.name)
    if outcome.finished:
        keep_result(job, folders, session)
    return outcome


def keep_result(job: Job, folders: Folders, session: Session) -> None:
    """Writes the result file of a finished run."""
    run = Run.load(folders.run_of(job))
    further = _measured_further(run, job.experiment.loops_to_test, pick_device(session.device))
    job.write_result(folders.results, result_of(job, run) | further)


def _measured_further(run: Run, loops: Sequence[int], device: torch.device) -> dict[str, dict[str, float]]:
    """Returns the accuracy of the best checkpoint with each number of loops, and on each difficulty of its task."""
    task, further = run.config.source, {}
    assert isinstance(task, Task)
    if not (loops or task.difficulties):
        return {}
    model = run.load_model("best").to(device)
    examples = min(run.config.test_examples, MOST_EXAMPLES)
    if loops:
        scores = {n: score_each(model, task.tests, "test", examples, n) for n in loops}
        further["by_loops"] = {str(n): mean_score(score).accuracy for n, score in scores.items()}
    if task.difficulties:
        graded = score_each(model, task.difficulties, "test", examples)
        further["by_difficulty"] = {name: score.accuracy for name, score in graded.items()}
    return further


def result_of(job: Job, run: Run) -> dict[str, Any]:
    """Returns everything that a table or figure needs to know of a finished run."""
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


def state_of(job: Job, folders: Folders) -> str:
    """Returns how far a job is: finished and when, step 1200 of 6000, or missing."""
    found = job.read_result(folders.results)
    if found is not None:
        return f"finished {found['result']['finished'][:10]}, accuracy {found['result']['accuracy']:.1%}"
    step = saved_step(job, folders)
    return f"step {step} of {job.config.steps}" if step else "missing"


def saved_step(job: Job, folders: Folders) -> int:
    """Returns the step of a job's last checkpoint; 0 where there is none."""
    return max(checkpoint.steps_in(folders.run_of(job) / "checkpoints"), default=0)
