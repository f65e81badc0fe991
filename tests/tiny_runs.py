"""Runs of a second, trained in processes of their own that can be stopped at a chosen moment."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import sys
from dataclasses import asdict, dataclass, is_dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors.torch import load_file

from loopt import InputError, LoopedTransformer, LoopPlan, ModelConfig
from loopt.model import Layer
from loopt.runs import AdamWConfig, TrainConfig, checkpoint
from loopt.runs.optimizers import with_optimizer
from loopt.tasks import PHop, Task
from loopt.training import Session, train

TINY = TrainConfig(
    source=PHop(p=(1,), n=8, alphabet=3),
    model=ModelConfig(plan=LoopPlan.parse("1x2"), d_model=8, n_heads=2, d_ff=16),
    optim=AdamWConfig(lr=0.01, warmup_steps=5),
    steps=24,
    batch_size=4,
    log_every=2,
    eval_every=6,
    eval_examples=16,
    test_examples=16,
)
CPU = Session(device="cpu")

# Children are forked from a server that has imported torch and done nothing else.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["torch._dynamo", "loopt.training"])


def tiny(optimizer: str = "adamw", **changes: Any) -> TrainConfig:
    return replace(TINY, optim=with_optimizer(TINY.optim, optimizer), **changes)


def with_source(config: TrainConfig, **changes: Any) -> TrainConfig:
    """The config with settings of its source changed."""
    assert is_dataclass(config.source)
    return replace(config, source=replace(config.source, **changes))


def task_of(config: TrainConfig) -> Task:
    assert isinstance(config.source, Task)
    return config.source


def layers_of(model: LoopedTransformer) -> list[Layer]:
    layers = [layer for layer in model.loop.layers if isinstance(layer, Layer)]
    assert len(layers) == len(model.loop.layers)
    return layers


@dataclass(frozen=True)
class Strike:
    """A signal that a process sends to itself when it comes to the n-th of something."""

    signal: int
    file_operation: int = 0
    """Opening, making, renaming, listing or deleting something of the run; the signal arrives before it is done."""
    step: int = 0
    """Training step of this process."""


class Child:
    """``train`` in a process of its own."""

    def __init__(
        self, config: TrainConfig, run: Path, session: Session = CPU, strike: Strike | None = None, file_limit: int = 0
    ) -> None:
        self.said = run.parent / f"{run.name}.said"
        self.struck_at = run.parent / f"{run.name}.struck"
        for file in (self.said, self.struck_at):
            file.unlink(missing_ok=True)
        arguments = (config, run, session, strike, file_limit, self.said, self.struck_at)
        self.process: BaseProcess = processes.Process(target=_train, args=arguments)
        self.process.start()

    def wait(self, seconds: float = 60) -> Child:
        self.process.join(seconds)
        return self

    @property
    def exitcode(self) -> int | None:
        return self.process.exitcode

    @property
    def outcome(self) -> dict[str, Any]:
        """The outcome's fields, or ``error`` with the message of an error that is meant for the user."""
        said: dict[str, Any] = json.loads(self.said.read_text())
        return said


def _train(
    config: TrainConfig,
    run: Path,
    session: Session,
    strike: Strike | None,
    file_limit: int,
    said: Path,
    struck_at: Path,
) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests' own process may have been started under nohup
    if strike and strike.file_operation:
        _strike_at_file_operation(strike, run, struck_at)
    if strike and strike.step:
        _strike_at_step(strike)
    if file_limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, resource.RLIM_INFINITY))
    try:
        outcome = asdict(train(config, run, session))
    except InputError as error:
        outcome = {"error": str(error)}
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    said.write_text(json.dumps(outcome))


def _strike_at_file_operation(strike: Strike, run: Path, struck_at: Path) -> None:
    operations = {"open", "os.mkdir", "os.rename", "os.listdir", "os.scandir", "os.remove", "os.rmdir"}
    note = struck_at.open("w")
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        # Deleting a directory names what is in it relative to a descriptor, and nothing else here deletes.
        if event in operations and (str(arguments[0]).startswith(str(run)) or event in ("os.remove", "os.rmdir")):
            count += 1
            if count == strike.file_operation:
                names = arguments[: 2 if event == "os.rename" else 1]
                note.write(" ".join([event, *(Path(name).name for name in names)]))
                note.flush()
                os.kill(os.getpid(), strike.signal)

    sys.addaudithook(hook)


def _strike_at_step(strike: Strike) -> None:
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if event == "call" and frame.f_code.co_name == "accumulate_gradient":
            count += 1
            if count == strike.step:
                os.kill(os.getpid(), strike.signal)

    sys.setprofile(profile)


def finished(config: TrainConfig, run: Path) -> Path:
    """A run that nothing disturbed."""
    child = Child(config, run).wait()
    assert child.exitcode == 0
    assert child.outcome["finished"], child.outcome
    return run


def stopped(config: TrainConfig, run: Path, step: int) -> Path:
    """A run that was asked to stop in the middle of ``step``."""
    child = Child(config, run, strike=Strike(signal.SIGTERM, step=step)).wait()
    assert child.outcome["step"] == step, child.outcome
    return run


TIMING_FIELDS = ("seconds", "finished", "examples_per_second", "tokens_per_second", "tflops", "mfu", "peak_memory_gb")


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMING_FIELDS} for line in lines]


def result(run: Path) -> dict[str, Any]:
    values = json.loads((run / "result.json").read_text())
    # A hash of the source changes when somebody edits it while the tests run; that of the file has times in it.
    return {name: value for name, value in values.items() if name not in (*TIMING_FIELDS, "source", "sha256")}


def tensors(run: Path, step: int) -> dict[str, torch.Tensor]:
    folder = run / "checkpoints" / checkpoint.name_of(step)
    return load_file(folder / checkpoint.WEIGHTS) | load_file(folder / checkpoint.OPTIMIZER)


def last_step(run: Path) -> int:
    return checkpoint.steps_in(run / "checkpoints")[-1]


def assert_same(run: Path, unbroken: Path) -> None:
    """Both runs left the same behind, to the bit, except for how long it took."""
    assert metrics(run) == metrics(unbroken)
    assert result(run) == result(unbroken)
    assert last_step(run) == last_step(unbroken) == result(unbroken)["step"]
    for step in {last_step(unbroken), result(unbroken)["best_step"]}:
        found, wanted = tensors(run, step), tensors(unbroken, step)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def snapshot(run: Path) -> dict[Path, tuple[int, bytes]]:
    """Every file, when it was last changed and what is in it."""
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(run.rglob("*")) if path.is_file()}
