"""Training one run, from wherever it stands to its end, a time limit or a signal.

Nothing about a run lives only in memory: examples are functions of their index, the learning rate is a function of the
step, and a checkpoint holds the rest. So a run that is killed and started again does what an unbroken one does.
"""

from __future__ import annotations

import hashlib
import math
import platform
import signal
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch.optim import Optimizer

import loopt
from loopt.devices import DeviceName, pick_device
from loopt.evaluation import mean_score, score_tests
from loopt.kernels import speed_up
from loopt.model import LoopedTransformer
from loopt.plan import InputError
from loopt.runs import Best, Run, RunError, TrainConfig, TrainState, checkpoint, codec
from loopt.training.optim import build_optimizers, load_optimizer_tensors, optimizer_tensors
from loopt.training.progress import ProgressLines
from loopt.training.step import NonFiniteError, StepReport, TrainStep
from loopt.training.trackers import TrackerName, open_trackers

TIMING_FIELDS = ("seconds", "examples_per_second")
"""Fields of metrics.jsonl that tell how long things took; all others are the same however often a run is killed."""

EVALUATION_TOKENS = 2**18


@dataclass(frozen=True)
class Session:
    """How this process works on a run. Nothing here changes what is computed, but for rounding."""

    device: DeviceName = "auto"
    """Where to train; auto takes the first of cuda, mps, cpu that is there."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the layers and the sampler; auto does so on cuda, where it pays."""
    time_limit: float | None = None
    """Seconds after which to save and stop; the same command goes on from there."""
    log: tuple[TrackerName, ...] = ()
    """Besides metrics.jsonl, log to tensorboard or wandb."""
    progress: bool = True
    """Show a progress bar on a terminal."""

    def __post_init__(self) -> None:
        if self.time_limit is not None and not self.time_limit >= 0:
            raise InputError(f"time_limit={self.time_limit}: allowed is 0 seconds or more")


@dataclass(frozen=True)
class Outcome:
    finished: bool
    step: int
    reason: str
    result: dict[str, Any] = field(default_factory=dict)
    signal: int | None = None
    """What asked the process to stop, be the run finished or not."""


class DivergedError(RunError):
    """Training met a loss or gradient that is not a number."""


def train(config: TrainConfig, directory: Path | str, session: Session | None = None, label: str = "") -> Outcome:
    """Train ``config`` in ``directory``, going on with what is there; a finished run returns its result at once.
    The progress bar calls it ``label``, or by its directory's name."""
    session = session or Session()
    with noted_signals() as caught, ProgressLines(session.progress) as lines:
        steps = train_stepwise(config, directory, session, Company(caught, lines), label)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome


@dataclass
class Company:
    """What the runs share that one process trains at the same time."""

    caught: list[int]
    """Signals that ask all of them to stop."""
    lines: ProgressLines
    size: int = 1
    """How many train now; each is charged its share of the time."""


def train_stepwise(
    config: TrainConfig, directory: Path | str, session: Session, company: Company, label: str = ""
) -> Generator[None, None, Outcome]:
    """What ``train`` does, as a generator that gives way to others after every step."""
    device = pick_device(session.device)
    run = Run.start(Path(directory), config.resolved())
    try:
        result = run.read_result()
        if result is not None:
            return Outcome(True, result["step"], "already finished", result)
        return (yield from _Trainer(run, session, device, company).train(label or run.directory.name))
    finally:
        run.close()


class _Trainer:
    def __init__(self, run: Run, session: Session, device: torch.device, company: Company) -> None:
        self.run, self.config, self.session, self.device, self.company = run, run.config, session, device, company
        self.began = self.charged_until = time.monotonic()
        self.model = build_model(self.config, device)
        compiled = session.compile == "on" or (session.compile == "auto" and device.type == "cuda")
        if compiled:
            speed_up(self.model)
        self.optimizers: list[Optimizer] = build_optimizers(self.model, self.config.optim)
        self.best: Best | None = None
        self.step = 0
        self.seconds = 0.0
        self._resume()
        captured = device.type == "cuda"
        self.update = TrainStep(self.config, self.model, self.optimizers, self.step, compiled, captured)

    def _resume(self) -> None:
        state = self.run.resume_point()
        if state:
            with self.run.advising(state.step):
                checkpoint.load_weights(self.run.checkpoints, state.step, self.model)
                tensors = checkpoint.load_optimizer(self.run.checkpoints, state.step)
                load_optimizer_tensors(self.model, self.optimizers, tensors)
            self.step, self.best, self.seconds = state.step, state.best, state.seconds
        self.run.open_metrics(keep_bytes=state.metrics_bytes if state else 0)
        self.trackers = open_trackers(self.session.log, self.run.directory, codec.to_json(self.config), self.step)

    def train(self, label: str) -> Generator[None, None, Outcome]:
        config = self.config
        accuracy = self.best.accuracy if self.best else None
        self.line = self.company.lines.add(label, config.steps, self.step, accuracy)
        try:
            while self.step < config.steps and not self._solved():
                self.update()
                self.step += 1
                self._charge()
                if self._due(config.log_every):
                    self._log(self._report())
                if self._due(config.eval_every):
                    self._report()
                    self._evaluate()
                    self._save()
                elif self.device.type == "cpu":  # looking costs nothing here, and elsewhere the host would wait
                    self._report()
                reason = self._why_stop()
                if reason:
                    self._report()
                    self._save()
                    return Outcome(False, self.step, reason, signal=self._signal())
                self.line.step(self.step)
                yield
            self.line.finished(self.step)
            reason = "solved" if self._solved() else "all steps done"
            return Outcome(True, self.step, reason, self._finish(), self._signal())
        finally:
            for tracker in self.trackers:
                tracker.close()

    def _charge(self) -> None:
        """Count the time since the last step, or this run's share of it where others train beside it."""
        now = time.monotonic()
        self.seconds += (now - self.charged_until) / self.company.size
        self.charged_until = now

    def _report(self) -> StepReport:
        try:
            return self.update.report()
        except NonFiniteError as error:
            raise self._diverged(error.step, str(error)) from None

    def _diverged(self, step: int, what: str) -> DivergedError:
        saved = checkpoint.steps_in(self.run.checkpoints)
        last = f"the last checkpoint, of step {saved[-1]}, is finite" if saved else "no checkpoint was kept yet"
        return DivergedError(
            f"run {self.run.directory} diverged at step {step} ({what}); {last}. "
            f"Try a lower optim.lr (now {self.config.optim.lr}), more optim.warmup_steps "
            f"(now {self.config.optim.warmup_steps}) or a smaller optim.clip_norm (now {self.config.optim.clip_norm})"
        )

    def _due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.config.steps

    def _solved(self) -> bool:
        target = self.config.target_accuracy
        return target is not None and self.best is not None and self.best.accuracy >= target

    def _signal(self) -> int | None:
        return self.company.caught[0] if self.company.caught else None

    def _why_stop(self) -> str:
        if self.company.caught:
            return f"stopped by {signal.Signals(self.company.caught[0]).name}"
        limit = self.session.time_limit
        return "time limit" if limit is not None and time.monotonic() - self.began >= limit else ""

    def _log(self, report: StepReport) -> None:
        config = self.config
        self._charge()
        values = {"loss": report.loss, "grad_norm": report.grad_norm, "lr": report.lr}
        speed = self.step * config.batch_size / self.seconds
        self.run.log({"step": self.step, **values, "seconds": self.seconds, "examples_per_second": speed})
        self.line.speed(report.loss, speed)
        for tracker in self.trackers:
            tracker.log(self.step, values | {"examples_per_second": speed})

    def _evaluate(self) -> None:
        config = self.config
        scores = score_tests(self.model, config.task, "validation", config.eval_examples, self._evaluation_batch())
        score = mean_score(scores)
        if not math.isfinite(score.loss):
            raise self._diverged(self.step, f"validation loss {score.loss}")
        if self.best is None or score.accuracy > self.best.accuracy:
            self.best = Best(self.step, score.accuracy)
        values = {"validation_accuracy": score.accuracy, "validation_loss": score.loss}
        if len(scores) > 1:
            values |= {f"validation_accuracy {name}": one.accuracy for name, one in scores.items()}
        self._charge()
        self.run.log({"step": self.step, **values, "seconds": self.seconds})
        self.line.accuracy(score.accuracy)
        for tracker in self.trackers:
            tracker.log(self.step, values)

    def _evaluation_batch(self) -> int:
        """A GPU wants more at a time than a training batch may have."""
        batch = self.config.batch_size
        return batch if self.device.type == "cpu" else max(batch, EVALUATION_TOKENS // self.config.model.max_len)

    def _save(self) -> None:
        optimizer = optimizer_tensors(self.model, self.optimizers)
        for name, tensor in (self.model.state_dict() | optimizer).items():
            if not tensor.isfinite().all():
                raise self._diverged(self.step, f"{name} is not finite")
        state = TrainState(self.step, self.run.fingerprint, self.run.sync_metrics(), self.best, self.seconds)
        self.run.save(self.model, optimizer, state)

    def _finish(self) -> dict[str, Any]:
        """Measure the best checkpoint on the test split, and write down the run's result."""
        config = self.config
        best = self.run.find("best")
        checkpoint.load_weights(self.run.checkpoints, best.step, self.model)
        scores = score_tests(self.model, config.task, "test", config.test_examples, self._evaluation_batch())
        score = mean_score(scores)
        self._charge()
        result = {
            "step": self.step,
            "accuracy": score.accuracy,
            "accuracies": {name: one.accuracy for name, one in scores.items()},
            "loss": score.loss,
            "test_examples": score.examples,
            "best_step": best.step,
            "best_validation_accuracy": self.best.accuracy if self.best else None,
            "parameters": config.model.parameters(),
            "flops": config.model.flops(config.task.length),
            "seconds": self.seconds,
            "config": self.run.fingerprint,
            "seed": config.seed,
            **environment(self.device),
        }
        self.run.write_result(result)
        return result


def build_model(config: TrainConfig, device: torch.device) -> LoopedTransformer:
    """The run's starting weights, drawn on the CPU so that they are the same for every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return LoopedTransformer(config.model).to(device)


def environment(device: torch.device) -> dict[str, str]:
    """What a result was measured on."""
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else f"{device.type} {platform.machine()}"
    source = hashlib.sha256()
    for path in sorted(Path(loopt.__file__).parent.rglob("*.py")):
        source.update(path.read_bytes())
    return {
        "hardware": hardware,
        "loopt": loopt.__version__,
        "source": source.hexdigest()[:16],
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Note Ctrl-C and SIGTERM instead of dying of them; a second one ends the process as usual."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    previous: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: object) -> None:
        caught.append(number)
        restore()

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    for number in previous:
        signal.signal(number, note)
    try:
        yield caught
    finally:
        restore()
