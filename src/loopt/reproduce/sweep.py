"""Sweeps in this process: the jobs of an experiment, resumed from what is there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from loopt.devices import pick_device
from loopt.errors import InputError
from loopt.reproduce.experiment import Job, describe_finished
from loopt.runs import Run, checkpoint, codec
from loopt.scoring import mean_score, score_each
from loopt.tasks import Task
from loopt.training import DivergedError, Outcome, Session, train, train_stepwise
from loopt.training.clock import SharedClock
from loopt.training.progress import ProgressLine, progress_display
from loopt.training.signals import catch_signals, stopped_by

MOST_EXAMPLES = 8192  # for each number of loops, and for each difficulty


@dataclass(frozen=True)
class Folders:
    """The directories of an experiment's runs and results."""

    runs: Path = Path("runs")
    """Where the runs go; they can be deleted when their results are there."""
    results: Path = Path("runs/results")
    """Where the result files go. What is finished there is not trained again."""

    def run_of(self, job: Job) -> Path:
        return self.runs / job.experiment.name / job.scale / job.name


def unfinished(jobs: Sequence[Job], folders: Folders, say: Callable[[str], None]) -> list[Job]:
    """Returns the jobs without a result, and reports when and by which code the others were finished."""
    waiting = []
    for job in jobs:
        found = job.read_result(folders.results)
        if found is None:
            waiting.append(job)
        else:
            say(f"{job.name}: found in {job.result_path(folders.results)}, {describe_finished(found['result'])}")
    return waiting


def run_locally(
    jobs: Sequence[Job], folders: Folders, session: Session, say: Callable[[str], None], together: int = 1
) -> tuple[Outcome | None, list[str]]:
    """Trains every job without a result, ``together`` of them at a time, within the session's time limit. Returns the
    outcome that stopped the sweep, if any did, and the jobs that diverged, which do not stop it."""
    if together < 1:
        raise InputError(f"together={together}: allowed is 1 or more")
    with catch_signals() as caught, progress_display(session.progress) as display:
        sweep = _Sweep(deque(unfinished(jobs, folders, say)), folders, session, say, caught, display)
        sweep.run(together)
        return sweep.stopped, sweep.diverged


@dataclass
class _Sweep:
    """Trains jobs in turns, a step each. On a GPU steps are only queued, so that jobs run side by side."""

    waiting: deque[Job]
    folders: Folders
    session: Session
    say: Callable[[str], None]
    caught: list[int]
    display: Progress
    clock: SharedClock = field(default_factory=SharedClock)
    active: dict[str, tuple[Job, Generator[None, None, Outcome]]] = field(default_factory=dict)
    stopped: Outcome | None = None
    diverged: list[str] = field(default_factory=list)

    def run(self, together: int) -> None:
        some_ran = False
        try:
            while self.active or self.waiting:
                while self.waiting and len(self.active) < together and not self.caught and not self.stopped:
                    # Never before the first job: every call makes progress.
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
        """Starts a job with its first step, which builds and compiles the model: what time is left is known then."""
        directory, callbacks = self.folders.run_of(job), [ProgressLine(self.display, job.name)]
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
            _save_result(job, self.folders, self.session)
            self.say(f"{job.name}: {outcome.reason} at step {outcome.step}, accuracy {outcome.result['accuracy']:.1%}")
        else:
            self.say(f"{job.name}: {outcome.reason}, saved at step {outcome.step}")
        if (not outcome.finished or outcome.signal) and self.stopped is None:
            self.stopped = outcome


def run_job(job: Job, folders: Folders, session: Session) -> Outcome:
    """Trains one job, and saves its result when it is finished."""
    outcome = train(job.config, folders.run_of(job), session, label=job.name)
    if outcome.finished:
        _save_result(job, folders, session)
    return outcome


def _save_result(job: Job, folders: Folders, session: Session) -> None:
    """Tests a finished run further where the experiment asks for it, and writes its result file."""
    run = Run.load(folders.run_of(job))
    further = _further_tests(run, job.experiment.loops_to_test, pick_device(session.device))
    job.write_result(folders.results, _result_of(job, run) | further)


def _further_tests(run: Run, loops: Sequence[int], device: torch.device) -> dict[str, dict[str, float]]:
    """Returns the accuracy of the best checkpoint by number of loops, and by difficulty of its task."""
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


def _result_of(job: Job, run: Run) -> dict[str, Any]:
    """Returns what tables and figures need of a finished run."""
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


def status_of(job: Job, folders: Folders) -> str:
    """Returns the status of a job: finished and when, step 1200 of 6000, or missing."""
    found = job.read_result(folders.results)
    if found is not None:
        return f"finished {found['result']['finished'][:10]}, accuracy {found['result']['accuracy']:.1%}"
    step = saved_step(job, folders)
    return f"step {step} of {job.config.steps}" if step else "missing"


def saved_step(job: Job, folders: Folders) -> int:
    """Returns the step of a job's last checkpoint; 0 where there is none."""
    return max(checkpoint.steps_in(folders.run_of(job) / "checkpoints"), default=0)
