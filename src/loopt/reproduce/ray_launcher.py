"""Sweeps on a Ray cluster: the jobs of an experiment run side by side, each as a Ray task.

The state of a job is in its run's directory, which every node must see under the same path. When a worker dies, Ray
retries its task on any node with room, and the run resumes from its last checkpoint.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from loopt.errors import InputError, RunError
from loopt.reproduce.experiment import Job
from loopt.reproduce.sweep import Folders, run_job, saved_step, unfinished
from loopt.runs.run import BusyError
from loopt.training import DivergedError, Outcome, Session
from loopt.training.signals import catch_signals, stopped_by

RETRIES = 3  # of a job whose worker died
LOCK_WAIT = 30.0  # seconds for a run's lock: a worker that Ray knows to be dead may still hold it, and its GPU
POLL_EVERY = 0.5  # seconds between looks for a signal


def run_on_ray(
    jobs: Sequence[Job], folders: Folders, session: Session, say: Callable[[str], None], gpus_per_run: float = 1.0
) -> tuple[Outcome | None, list[str]]:
    """Trains like ``run_locally``, with as many jobs at a time as the cluster has room for. Returns the outcome of the
    stopped job with the most steps, and the jobs that diverged.

    The time limit is one deadline for all jobs, by the clocks of their nodes; starting Ray counts. A signal cancels the
    jobs: those that train save a checkpoint and stop, the others just stop. A second signal waits for nothing, and runs
    resume from their last checkpoints. A job that fails leaves the others alone; when all have ended, failures other
    than divergence raise a ``RunError``.
    """
    if not 0 <= gpus_per_run <= 1:
        raise InputError(f"gpus_per_run={gpus_per_run}: allowed is 0 to 1, since a run trains on one GPU")
    deadline = None if session.time_limit is None else time.time() + session.time_limit
    folders = Folders(folders.runs.resolve(), folders.results.resolve())  # a worker may have another working directory
    with _cluster() as ray:
        gpus = gpus_per_run if session.device in ("auto", "cuda") and ray.cluster_resources().get("GPU") else 0
        device = "cpu" if gpus_per_run == 0 and session.device == "auto" else session.device
        session = replace(session, device=device, progress=False)
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_run)
        with catch_signals() as caught:
            waiting = {task.remote(job, folders, session, deadline): job for job in unfinished(jobs, folders, say)}
            return _watch(ray, waiting, folders, caught, say)


@contextmanager
def _cluster() -> Iterator[Any]:
    """Yields Ray, connected: as this process already is, else to the cluster of RAY_ADDRESS or of ``ray start`` on this
    machine, else to one of our own that ends with us."""
    try:
        import ray
    except ImportError:
        raise InputError("launcher=ray: not installed; pip install 'loopt[sweep]'") from None
    if ray.is_initialized():
        yield ray
        return
    _check_address(os.environ.get("RAY_ADDRESS", ""))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster of our own reports to nobody
    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raises an InputError where no cluster answers, at once: Ray itself tries for more than two minutes."""
    if address in ("", "auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise InputError(f"RAY_ADDRESS={address}: no Ray cluster answers there ({error})") from None


def _run(job: Job, folders: Folders, session: Session, deadline: float | None) -> Outcome:
    """Trains one job in a worker, in its main thread, so that ``train`` catches signals as usual."""
    if deadline is not None:
        left = deadline - time.time()
        if left <= 0:
            return Outcome(False, saved_step(job, folders), "time limit")
        session = replace(session, time_limit=left)
    outcome = _run_when_free(job, folders, session)
    if not outcome.finished and outcome.signal == signal.SIGTERM:
        signal.raise_signal(signal.SIGTERM)  # it was for this worker or its node: let Ray retry the job elsewhere
    return outcome


def _run_when_free(job: Job, folders: Folders, session: Session) -> Outcome:
    patience = time.monotonic() + LOCK_WAIT
    while True:
        try:
            return run_job(job, folders, session)
        except BusyError:
            if time.monotonic() > patience:
                raise
            time.sleep(1)


def _watch(
    ray: Any, waiting: dict[Any, Job], folders: Folders, caught: list[int], say: Callable[[str], None]
) -> tuple[Outcome | None, list[str]]:
    """Waits for all jobs, reports how each ended, and cancels them on a signal."""
    stopped: list[Outcome] = []
    diverged: list[str] = []
    failed: list[str] = []
    cancelled = False
    while waiting:
        if caught and not cancelled:
            cancelled = True
            for reference in waiting:
                ray.cancel(reference)  # the worker gets a Ctrl-C
        ended, _ = ray.wait(list(waiting), timeout=POLL_EVERY)
        for reference in ended:
            job = waiting.pop(reference)
            try:
                outcome: Outcome = ray.get(reference)
            except ray.exceptions.TaskCancelledError:
                outcome = Outcome(False, saved_step(job, folders), "cancelled", signal=signal.SIGINT)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, DivergedError):
                    diverged.append(job.name)
                else:
                    failed.append(job.name)
                # An InputError speaks for itself; of any other error Ray's text has the traceback.
                say(str(error.cause) if isinstance(error.cause, InputError) else f"{job.name}: {error}")
                continue
            except ray.exceptions.RayError as error:
                failed.append(job.name)
                kind, step = type(error).__name__, saved_step(job, folders)
                say(f"{job.name}: lost its worker more than {RETRIES} times ({kind}), saved at step {step}")
                continue
            if outcome.finished:
                shown = job.experiment.measurement.shown(outcome.result)
                say(f"{job.name}: {outcome.reason} at step {outcome.step}, {shown}")
            else:
                outcome = _by_our_signal(outcome, caught)
                stopped.append(outcome)
                say(f"{job.name}: {outcome.reason}, {f'saved at step {outcome.step}' if outcome.step else 'not begun'}")
    if caught and not stopped:  # the signal came when all had ended
        stopped.append(_by_our_signal(Outcome(False, 0, ""), caught))
    if failed and not stopped:
        raise RunError(f"{len(failed)} runs failed, as told above: {', '.join(failed)}. The same command tries again")
    return max(stopped, key=lambda outcome: outcome.step, default=None), diverged


def _by_our_signal(outcome: Outcome, caught: list[int]) -> Outcome:
    """Returns the outcome of a cancelled job with the signal that we caught as its reason."""
    if not caught:
        return outcome
    return replace(outcome, reason=stopped_by(caught[0]), signal=caught[0])
