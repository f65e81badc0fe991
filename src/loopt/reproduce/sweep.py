"""Sweeps in this process: the jobs of an experiment, resumed from what is there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from loopt.devices import pick_device
from loopt.errors import InputError
from loopt.reproduce.experiment import Job
from loopt.runs import Run, checkpoint
from loopt.training import DivergedError, Outcome, Session, train_stepwise
from loopt.training.clock import SharedClock
from loopt.training.progress import Display, ProgressLine
from loopt.training.signals import catch_signals, stopped_by
from loopt.training.threads import training_threads


@dataclass(frozen=True)
class Folders:
    """The directories of an experiment's runs and results."""

    runs: Path = Path("runs")
    """Where the runs go; they can be deleted when their results are there."""
    results: Path = Path("runs/results")
    """Where the result files go. What is finished there is not trained again."""

    def run_of(self, job: Job) -> Path:
        return self.runs / job.experiment.folder / job.scale / job.name


def unfinished(jobs: Sequence[Job], folders: Folders, say: Callable[[str], None]) -> list[Job]:
    """Returns the jobs that are not finished, and reports when and by which code the others were."""
    waiting = []
    for job in jobs:
        found = job.read_result(folders.results)
        if not is_finished(job, folders):
            waiting.append(job)
        if found is not None:
            measurement = job.experiment.measurement
            told = measurement.describe_finished(found["result"])
            rest = "" if measurement.is_complete(found) else "; not measured on all tasks"
            if rest:
                rest += ", which is done now" if job in waiting else f", and its run is not in {folders.run_of(job)}"
            say(f"{job.name}: found in {job.result_path(folders.results)}, {told}{rest}")
    return waiting


def is_finished(job: Job, folders: Folders) -> bool:
    """Tells whether nothing is left to do: there is a result, which is complete or whose run is gone."""
    found = job.read_result(folders.results)
    if found is None:
        return False
    return job.experiment.measurement.is_complete(found) or not (folders.run_of(job) / "result.json").exists()


def run_locally(
    jobs: Sequence[Job], folders: Folders, session: Session, say: Callable[[str], None], together: int = 1
) -> tuple[Outcome | None, list[str]]:
    """Trains every job without a result, ``together`` of them at a time, within the session's time limit. Returns the
    outcome that stopped the sweep, if any did, and the jobs that diverged, which do not stop it."""
    if together < 1:
        raise InputError(f"together={together}: allowed is 1 or more")
    waiting = unfinished(jobs, folders, say)
    with catch_signals() as caught, _watched(waiting, session) as display:
        sweep = _Sweep(deque(waiting), folders, session, say, caught, display)
        sweep.run(together)
        return sweep.stopped, sweep.diverged


@contextmanager
def _watched(jobs: Sequence[Job], session: Session) -> Iterator[Display]:
    """Shows how far the jobs are, and chooses the number of threads that suits the largest."""
    configs = [job.config for job in jobs]
    with (
        Display(session.progress, [config.steps for config in configs]) as display,
        training_threads(configs, session, pick_device(session.device)) as threads,
    ):
        display.say_once(threads)
        yield display


@dataclass
class _Sweep:
    """Trains jobs in turns, a step each. On a GPU steps are only queued, so that jobs run side by side."""

    waiting: deque[Job]
    folders: Folders
    session: Session
    say: Callable[[str], None]
    caught: list[int]
    display: Display
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
        steps = _train_and_measure(job, self.folders, self.session, self.clock, self.caught, self.display)
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
            shown = job.experiment.measurement.shown(outcome.result)
            self.say(f"{job.name}: {outcome.reason} at step {outcome.step}, {shown}")
        else:
            self.say(f"{job.name}: {outcome.reason}, saved at step {outcome.step}")
        if (not outcome.finished or outcome.signal) and self.stopped is None:
            self.stopped = outcome


def run_job(job: Job, folders: Folders, session: Session) -> Outcome:
    """Trains and measures one job, and saves its result when it is finished."""
    with catch_signals() as caught, _watched([job], session) as display:
        steps = _train_and_measure(job, folders, session, SharedClock(), caught, display)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome


def _train_and_measure(
    job: Job, folders: Folders, session: Session, clock: SharedClock, caught: list[int], display: Display
) -> Generator[None, None, Outcome]:
    """Trains a job, measures it and writes its result file; yields after every step and every part of measuring, so
    that jobs can take turns. A time limit or a signal stops it at any of these."""
    directory, measurement = folders.run_of(job), job.experiment.measurement
    asked = session.keep
    session = replace(session, keep=(*asked, *measurement.steps_to_keep(job)))
    line = ProgressLine(display, job.name)
    outcome = yield from train_stepwise(job.config, directory, session, clock, caught, [line])
    if not outcome.finished:
        return outcome
    run = Run.load(directory)
    measuring = measurement.measure(job, run, pick_device(session.device))
    while True:
        try:
            line.measured(next(measuring), outcome.step)
        except StopIteration as end:
            job.write_result(folders.results, measurement.fields_of_run(job, run) | end.value)
            measurement.after_writing(run, job.result_path(folders.results), asked)
            return outcome
        if caught or clock.out_of_time(session.time_limit):
            measuring.close()
            number = caught[0] if caught else None
            reason = stopped_by(number) if number else "time limit"
            return Outcome(False, outcome.step, f"{reason} while measuring", signal=number)
        yield


def status_of(job: Job, folders: Folders) -> str:
    """Returns the status of a job: finished and when, step 1200 of 6000, or missing."""
    found = job.read_result(folders.results)
    if found is not None:
        result = found["result"]
        return f"finished {result['finished'][:10]}, {job.experiment.measurement.shown(result)}"
    step = saved_step(job, folders)
    return f"step {step} of {job.config.steps}" if step else "missing"


def saved_step(job: Job, folders: Folders) -> int:
    """Returns the step of a job's last checkpoint; 0 where there is none."""
    return max(checkpoint.steps_in(folders.run_of(job) / "checkpoints"), default=0)
