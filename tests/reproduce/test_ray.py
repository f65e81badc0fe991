from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loopt import InputError, LoopPlan
from loopt.errors import RunError
from loopt.reproduce import ray_launcher
from loopt.reproduce.experiment import Experiment, Job, Row, Scale, jobs_of
from loopt.reproduce.ray_launcher import run_on_ray
from loopt.reproduce.sweep import Folders, run_locally
from loopt.runs import Run, TrainConfig, checkpoint
from loopt.training import Outcome
from tiny_runs import CPU, TINY, assert_same

pytestmark = pytest.mark.slow

ray = pytest.importorskip("ray")

FOREVER = 10**7
LONG = replace(TINY, steps=240, log_every=20, eval_every=20)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # At Ray's niceness of 15 its workers starve beside the tests of another process.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    ray.init(address="local", num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def rows(config: TrainConfig, doing: Callable[[str], None] | None = None, **changes: TrainConfig) -> list[Job]:
    """Returns two rows with ``config``, or the one of ``changes`` for a plan; workers call ``doing`` with the plan."""
    here = os.getpid()

    def configure(plan: LoopPlan, variant: str, scale: Scale) -> TrainConfig:
        if doing and os.getpid() != here:
            doing(str(plan))
        chosen = changes.get(f"plan_{plan}", config)
        return replace(chosen, model=replace(chosen.model, plan=plan))

    plans = tuple(Row(LoopPlan.parse(plan), {"accuracy": 99.9}) for plan in ("1x1", "1x2"))
    experiment = Experiment(
        "tiny", "Two rows", plans, ("",), lambda variant, scale: {"phop": "accuracy"}, configure, {}
    )
    return jobs_of(experiment, "cpu", 1)


def folders_in(folder: Path) -> Folders:
    return Folders(folder / "runs", folder / "results")


def results(jobs: list[Job], folders: Folders) -> list[dict[str, Any]]:
    """Returns the result files, without what differs between two equal runs."""
    found = []
    for job in jobs:
        result = job.read_result(folders.results)
        assert result is not None
        result["result"] = {k: v for k, v in result["result"].items() if k not in ("seconds", "finished", "source")}
        result["curve"] = [[step, accuracy] for step, accuracy, _ in result["curve"]]
        found.append(result)
    return found


def wait_for(condition: Callable[[], object], seconds: float = 150) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def saved(job: Job, folders: Folders) -> int:
    return max(checkpoint.steps_in(folders.run_of(job) / "checkpoints"), default=0)


def logged(job: Job, folders: Folders) -> list[int]:
    """Returns the steps with a loss in metrics.jsonl."""
    run = folders.run_of(job)
    if not (run / "config.json").exists():
        return []
    return [line["step"] for line in Run.load(run).read_metrics() if "loss" in line]


def test_rows_on_ray_are_those_that_are_run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = rows(TINY)
    here, there = folders_in(tmp_path / "here"), Folders(Path("runs"), Path("results"))
    monkeypatch.chdir(tmp_path)  # relative folders are meant from here, wherever the workers are
    said: list[str] = []
    assert run_locally(jobs, here, CPU, print) == (None, [])
    assert run_on_ray(jobs, there, CPU, said.append) == (None, [])
    assert results(jobs, there) == results(jobs, here)
    for job in jobs:
        assert_same(there.run_of(job), here.run_of(job))
    assert sorted(line.partition(" at step 24, accuracy ")[0] for line in said) == [
        "1x1-seed0: all steps done",
        "1x2-seed0: all steps done",
    ]
    said.clear()
    assert run_on_ray(jobs, there, CPU, said.append) == (None, [])
    assert [line.partition(": found in ")[0] for line in said] == ["1x1-seed0", "1x2-seed0"]  # and not run again


def test_rows_whose_workers_are_killed_or_told_to_end_resume_in_others(tmp_path: Path) -> None:
    """The second row's worker is killed; the first row's gets a SIGTERM, and saves where it is."""
    seen = tmp_path / "seen"
    here, there = folders_in(tmp_path / "here"), folders_in(tmp_path / "there")
    told = there.runs / "tiny" / "cpu" / "1x1-seed0"

    def note(plan: str) -> None:
        steps = checkpoint.steps_in(told / "checkpoints") if plan == "1x1" else []
        with seen.open("a") as file:
            file.write(f"{plan} {os.getpid()} {steps}\n")
        if plan == "1x1" and not steps:
            threading.Thread(target=end).start()

    def end() -> None:
        while not (told / "metrics.jsonl").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    jobs = rows(LONG, note, plan_1x1=replace(LONG, eval_every=LONG.steps))
    victim = jobs[1]
    at: list[int] = []

    def kill() -> None:
        wait_for(lambda: saved(victim, there) >= 40)
        with pytest.raises(RunError, match="is being trained by another process"):
            Run.start(there.run_of(victim), victim.config.resolved())
        pid = re.findall(r"1x2 (\d+)", seen.read_text())[-1]
        os.kill(int(pid), signal.SIGKILL)
        at.append(saved(victim, there))

    killer = threading.Thread(target=kill)
    killer.start()
    assert run_on_ray(jobs, there, CPU, print) == (None, [])
    killer.join()
    assert 40 <= at[0] < LONG.steps
    for plan in ("1x1", "1x2"):
        assert len(set(re.findall(rf"{plan} (\d+)", seen.read_text()))) == 2
    first, second = map(json.loads, re.findall(r"1x1 \d+ (.*)", seen.read_text()))
    assert first == []
    assert 0 < second[0] < LONG.steps, "saved where it was, not at an evaluation"
    run_locally(jobs, here, CPU, print)
    assert results(jobs, there) == results(jobs, here)
    for job in jobs:
        assert_same(there.run_of(job), here.run_of(job))


def test_the_time_limit_stops_all_rows_and_the_same_call_resumes(tmp_path: Path) -> None:
    jobs, folders = rows(replace(LONG, steps=FOREVER)), folders_in(tmp_path)
    reached = [0]
    for _ in range(40):  # a slow machine may spend a limit on starting
        stopped, diverged = run_on_ray(jobs, folders, replace(CPU, time_limit=1.0), print)
        assert stopped is not None
        assert not stopped.finished
        assert (stopped.reason, stopped.signal, diverged) == ("time limit", None, [])
        now = min(saved(job, folders) for job in jobs)
        assert now >= reached[-1]
        if now > reached[-1]:
            reached.append(now)
        if len(reached) == 3:
            break
    assert len(reached) == 3
    for job in jobs:
        assert logged(job, folders) == list(range(20, saved(job, folders) + 1, 20))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_all_rows_and_stops(tmp_path: Path, number: signal.Signals) -> None:
    jobs, folders = rows(replace(LONG, steps=FOREVER, log_every=1, eval_every=FOREVER)), folders_in(tmp_path)
    said: list[str] = []
    over = threading.Event()

    def interrupt() -> None:
        try:
            wait_for(lambda: over.is_set() or all(logged(job, folders) for job in jobs))
        finally:  # the rows would train for ever
            if not over.is_set():
                os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        stopped, diverged = run_on_ray(jobs, folders, CPU, said.append)
    finally:
        over.set()
        thread.join()
    assert stopped is not None
    assert stopped == Outcome(False, stopped.step, f"stopped by {number.name}", signal=number)
    assert not diverged
    assert sorted(said) == [
        f"{job.name}: stopped by {number.name}, saved at step {saved(job, folders)}" for job in jobs
    ]
    assert all(saved(job, folders) >= logged(job, folders)[0] for job in jobs)


def test_a_row_that_diverges_leaves_the_others_alone(tmp_path: Path) -> None:
    jobs = rows(TINY, plan_1x1=replace(TINY, optim=replace(TINY.optim, lr=1e30)))
    said: list[str] = []
    assert run_on_ray(jobs, folders_in(tmp_path), CPU, said.append) == (None, ["1x1-seed0"])
    assert results(jobs[1:], folders_in(tmp_path))
    assert any("diverged at step" in line and "Traceback" not in line for line in said)


def test_a_row_that_kills_every_worker_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(plan: str) -> None:
        if plan == "1x1":
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(ray_launcher, "RETRIES", 1)
    jobs = rows(TINY, die)
    said: list[str] = []
    with pytest.raises(RunError, match=r"1 runs failed.*1x1-seed0"):
        run_on_ray(jobs, folders_in(tmp_path), CPU, said.append)
    assert results(jobs[1:], folders_in(tmp_path))
    assert "1x1-seed0: lost its worker more than 1 times (WorkerCrashedError), saved at step 0" in said


def test_ray_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=re.escape("launcher=ray: not installed; pip install 'loopt[sweep]'")):
        run_on_ray(rows(TINY), folders_in(tmp_path), CPU, print)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
def test_a_cluster_that_is_not_there_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError, match=f"RAY_ADDRESS={address}: no Ray cluster answers there"):
        run_on_ray(rows(TINY), folders_in(tmp_path), CPU, print)


def test_a_run_takes_at_most_one_gpu(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gpus_per_run=2"):
        run_on_ray(rows(TINY), folders_in(tmp_path), CPU, print, gpus_per_run=2)
