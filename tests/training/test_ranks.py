"""Several processes train one model: the same tokens, losses and weights as one process, and checkpoints that either
goes on from; killed, stopped and refused like one process."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import tiny_runs
from loopt import InputError
from loopt.runs import TrainConfig, codec, optimizers
from loopt.runs.checkpoint import steps_in
from loopt.runs.config import RegularizerConfig
from loopt.runs.loop_counts import LoopCounts
from loopt.runs.stacking import StackingConfig
from loopt.scoring import precision
from loopt.training import Outcome, Session, train, train_stepwise
from loopt.training.clock import SharedClock
from loopt.training.parallel import Parallel, Ranks, fresh_store
from loopt.training.text_learner import TextLearner
from loopt.training.trainer import build_model, prepare
from ranks import SIZE, in_ranks
from tiny_runs import CPU, last_step, metrics, stopped, tensors
from tiny_text_runs import rows_of_step, tiny_text

DDP, FSDP = replace(CPU, parallel="ddp"), replace(CPU, parallel="fsdp")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed"),
]


@dataclass(frozen=True)
class Job:
    """Something that all ranks do with a run."""

    config: TrainConfig
    session: Session = DDP
    stop_at: int = 0
    """Step in whose middle the first rank is asked to stop."""
    bfloat16: bool = False
    """Compute as on a GPU."""


brief_text = partial(tiny_text, log_every=1, steps=8)
REGULARIZED = brief_text(plan="4x1", regularizer=RegularizerConfig(block=2, weight=3.0))
SHORT = tiny_text(log_every=1, steps=6, eval_every=3)


def with_optimizer(name: str, config: TrainConfig) -> TrainConfig:
    return replace(config, optim=optimizers.with_optimizer(config.optim, name))


TRAINED = {
    "adamw ddp": Job(brief_text(loop_counts=LoopCounts(1, 3)), replace(DDP, micro_batch=1)),
    "adamw fsdp": Job(REGULARIZED, replace(FSDP, micro_batch=1, recompute=True)),
    "adafactor ddp": Job(with_optimizer("adafactor", REGULARIZED)),
    "adafactor fsdp": Job(with_optimizer("adafactor", REGULARIZED), FSDP),
    "growing": Job(brief_text(plan="2x1", stacking=StackingConfig(1, (5,))), FSDP),
}
ROUNDED = {
    "muon ddp": Job(with_optimizer("muon", SHORT)),
    "muon fsdp": Job(with_optimizer("muon", SHORT), FSDP),
    "bfloat16 ddp": Job(SHORT, replace(DDP, micro_batch=1), bfloat16=True),
    "bfloat16 fsdp": Job(SHORT, replace(FSDP, micro_batch=1), bfloat16=True),
}
"""Where a rounding to bfloat16 makes more of the last bit of a sum."""
LEFT = {
    "left by ddp": Job(brief_text(), DDP, stop_at=7),
    "left by fsdp": Job(brief_text("adafactor"), FSDP, stop_at=7),
}
"""Stopped, for one process to go on with."""
TAKEN = {
    "taken by ddp": Job(brief_text("adafactor"), DDP),
    "taken by fsdp": Job(brief_text("adafactor"), FSDP),
    "adamw taken by fsdp": Job(brief_text(), FSDP),
}
"""Begun by one process."""
REFUSED = {
    "a task": Job(tiny_runs.TINY),
    "an odd batch": Job(tiny_text(batch_size=3)),
    "large micro-batches": Job(tiny_text(), replace(DDP, micro_batch=3)),
    "another seed": Job(tiny_text(seed=1)),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories of all these jobs, done by two processes one after the other."""
    folder = tmp_path_factory.mktemp("ranks")
    for name, job in TAKEN.items():
        stopped(job.config, folder / name, 5)
    stopped(tiny_text(), folder / "another seed", 5)
    jobs = TRAINED | ROUNDED | LEFT | TAKEN | REFUSED
    in_ranks(_do, folder, jobs)
    return folder


def _do(rank: int, folder: Path, jobs: dict[str, Job]) -> None:
    for name, job in jobs.items():
        with computing_in_bfloat16(job.bfloat16):
            try:
                told = _train(job, folder / name, rank)
            except InputError as error:
                told = str(error)
            (folder / f"{name}.said by {rank}").write_text(told)


def _train(job: Job, run: Path, rank: int) -> str:
    caught: list[int] = []
    steps = train_stepwise(job.config, run, job.session, SharedClock(), caught)
    for step in itertools.count(1):
        if step == job.stop_at and rank == 0:
            caught.append(signal.SIGTERM)
        try:
            next(steps)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome.reason
    raise AssertionError("a run ends")


@contextmanager
def computing_in_bfloat16(wanted: bool) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if wanted:
            patch.setattr(precision, "BFLOAT16_ON", (*precision.BFLOAT16_ON, "cpu"))
        yield


def said(runs: Path, name: str) -> list[str]:
    return [(runs / f"{name}.said by {rank}").read_text() for rank in range(SIZE)]


def assert_close(run: Path, other: Path, tolerance: float) -> None:
    found, wanted = metrics(run), metrics(other)
    assert [entry.keys() for entry in found] == [entry.keys() for entry in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours == pytest.approx(theirs, rel=tolerance, abs=tolerance)
    ours, theirs = tiny_runs.result(run), tiny_runs.result(other)
    for name in ("loss", "perplexity"):
        assert ours.pop(name) == pytest.approx(theirs.pop(name), rel=tolerance)
    for one in (ours, theirs):
        assert one.pop("best_validation").startswith("perplexity ")
    assert ours == theirs


@pytest.mark.parametrize("name", [*TRAINED, *ROUNDED])
def test_ranks_train_what_one_process_trains(name: str, runs: Path, tmp_path: Path) -> None:
    job = (TRAINED | ROUNDED)[name]
    assert said(runs, name) == ["all steps done"] * SIZE
    with computing_in_bfloat16(job.bfloat16):
        train(job.config, tmp_path, CPU)
    assert_close(runs / name, tmp_path, tolerance=1e-5 if name in TRAINED else 3e-2)
    assert metrics(runs / name)[0]["loss"] == pytest.approx(metrics(tmp_path)[0]["loss"], rel=5e-4)
    found, wanted = (tensors(run, job.config.steps) for run in (runs / name, tmp_path))
    assert found.keys() == wanted.keys()
    for key, tensor in found.items():
        assert (tensor.dtype, tensor.shape) == (wanted[key].dtype, wanted[key].shape)


@pytest.mark.parametrize("name", LEFT)
def test_one_process_goes_on_where_ranks_left(name: str, runs: Path, tmp_path: Path) -> None:
    assert said(runs, name) == ["stopped by SIGTERM"] * SIZE  # which only the first was told
    assert last_step(runs / name) == 7
    for run in (runs / name, tmp_path):
        assert train(LEFT[name].config, run, CPU).finished
    assert_close(runs / name, tmp_path, tolerance=1e-5)


@pytest.mark.parametrize("name", TAKEN)
def test_ranks_go_on_where_one_process_left(name: str, runs: Path, tmp_path: Path) -> None:
    assert said(runs, name) == ["all steps done"] * SIZE
    train(TAKEN[name].config, tmp_path, CPU)
    assert_close(runs / name, tmp_path, tolerance=1e-5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a task", "2 ranks: a task trains on one; language models train on several"),
        ("an odd batch", "batch_size=3: allowed is a multiple of the 2 ranks"),
        ("large micro-batches", "micro_batch=3: allowed is 1 to 2, a rank's share of the batch"),
    ],
)
def test_what_ranks_refuse_leaves_nothing_behind(name: str, message: str, runs: Path) -> None:
    assert said(runs, name) == [message] * SIZE
    assert not (runs / name).exists()


def test_what_the_first_rank_refuses_all_do(runs: Path, tmp_path: Path) -> None:
    first, second = said(runs, "another seed")
    assert "was started with seed=0, now 1: choose another directory" in first
    assert second == f"run {runs / 'another seed'}: the first rank cannot start it, and says why"
    assert last_step(runs / "another seed") == 5


def _note_tokens(rank: int, folder: Path, config: TrainConfig) -> None:
    for way in get_args(Parallel):
        model = build_model(config, torch.device("cpu"))
        learner = TextLearner(config, model, 0, Session(parallel=way), Ranks(rank, SIZE, rank))
        seen = []
        for _ in range(3):
            learner.train_step()
            seen.append(learner.tokens.clone())
        torch.save(seen, folder / f"{way} tokens of {rank}")
        held = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
        (folder / f"{way} numbers of {rank}").write_text(str(sum(weight.numel() for weight in held)))


def test_the_shares_of_all_ranks_are_the_batch_and_the_model(tmp_path: Path) -> None:
    config = prepare(tiny_text(seed=3), tmp_path)
    in_ranks(_note_tokens, tmp_path, config)
    whole = config.model.parameters()
    for way, held in (("ddp", whole), ("fsdp", whole // 2)):
        first, second = (torch.load(tmp_path / f"{way} tokens of {rank}") for rank in range(SIZE))
        for step in range(3):
            assert len(first[step]) == len(second[step]) == 2
            assert torch.equal(torch.cat((first[step], second[step])), rows_of_step(config, step))
        assert [int((tmp_path / f"{way} numbers of {rank}").read_text()) for rank in range(SIZE)] == [held] * SIZE


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="tells ranks apart by /proc")
def test_a_rank_is_killed_and_the_job_stopped(tmp_path: Path) -> None:
    """torchrun starts all ranks again, and they go on from the last checkpoint; asked to stop, they save first."""
    config, run = tiny_text(steps=100_000, eval_every=10), tmp_path / "run"
    (tmp_path / "config.json").write_text(json.dumps(codec.to_json(config)))
    options = ["--standalone", "--nproc-per-node", str(SIZE), "--max-restarts", "1", "-m", "--"]
    command = ["loopt", "train", "--from", str(tmp_path / "config.json"), "--run", str(run), "--device", "cpu"]
    torchrun = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *options, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for_step(run, 10, torchrun)
        os.kill(pid_of_rank(1, torchrun.pid), signal.SIGKILL)
        killed_at = last_step(run)
        wait_for_step(run, killed_at + 20, torchrun)  # one checkpoint may have been on its way
        torchrun.send_signal(signal.SIGTERM)
        out, err = torchrun.communicate(timeout=60)
    finally:
        torchrun.terminate()  # a kill would leave its ranks behind
        torchrun.communicate()
    stop = re.search(r"run: stopped by SIGTERM, saved at step (\d+); the same command resumes from there\n", out)
    assert stop, err
    step = int(stop.group(1))
    assert step == last_step(run) > killed_at
    assert torchrun.returncode != 0

    in_ranks(_do, tmp_path, {"unbroken": Job(config, stop_at=step)})
    assert metrics(run) == metrics(tmp_path / "unbroken")
    found, wanted = tensors(run, step), tensors(tmp_path / "unbroken", step)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_ranks_that_are_started_again_do_not_meet_the_dead() -> None:
    """Their store remembers the last time; who comes first this time is left to chance."""
    store, seen = dist.HashStore(), []  # type: ignore[attr-defined]
    store.set_timeout(timedelta(seconds=5))
    for attempt, late in enumerate((0, 0, 1)):

        def join(rank: int, late: int = late) -> dist.Store:  # type: ignore[name-defined]
            time.sleep(0.2 * (rank == late))
            return fresh_store(store, Ranks(rank, 3))

        with ThreadPoolExecutor() as threads:
            stores = list(threads.map(join, range(3)))
        stores[0].set("attempt", str(attempt))
        assert [int(one.get("attempt")) for one in stores] == [attempt] * 3
        seen += stores
    assert [int(one.get("attempt")) for one in seen] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def wait_for_step(run: Path, step: int, torchrun: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 90
    while not (saved := steps_in(run / "checkpoints")) or saved[-1] < step:
        assert torchrun.poll() is None, torchrun.communicate()
        assert time.monotonic() < deadline, saved
        time.sleep(0.02)


def pid_of_rank(rank: int, parent: int) -> int:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    (found,) = (pid for pid in children if f"RANK={rank}" in Path(f"/proc/{pid}/environ").read_text().split("\0"))
    return int(found)
