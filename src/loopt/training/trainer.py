"""Training one run, from wherever it stands to its end, a time limit or a signal.

Nothing about a run lives only in memory: examples are functions of their index, the learning rate is a function of the
step, and a checkpoint holds the rest. So a run that is killed and started again does what an unbroken one does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from loopt.devices import DeviceName, pick_device
from loopt.errors import InputError, RunError
from loopt.kernels import wake_compiler
from loopt.model import LoopedTransformer
from loopt.plan import LoopPlan
from loopt.runs import Best, Run, TrainConfig, TrainState, checkpoint, codec, read_config
from loopt.runs.stacking import StackingConfig
from loopt.training.ahead import compiling_ahead
from loopt.training.environment import environment
from loopt.training.optim import load_optimizer_tensors, optimizer_tensors
from loopt.training.parallel import Parallel, Ranks, whole
from loopt.training.progress import ProgressLines
from loopt.training.signals import noted_signals, stopped_by
from loopt.training.stacking import grow
from loopt.training.step import NonFiniteError, StepReport
from loopt.training.task_work import TaskStep, TaskWork
from loopt.training.text_work import TextStep, TextWork, check_shares, open_data
from loopt.training.trackers import Tracker, TrackerName, open_trackers
from loopt.training.work import Work

TIMING_FIELDS = ("seconds", "examples_per_second", "tokens_per_second", "tflops", "mfu", "peak_memory_gb")
"""Fields of metrics.jsonl that tell how things went here; all others are the same however often a run is killed."""


@dataclass(frozen=True)
class Session:
    """How this process works on a run. Nothing here changes what is computed, but for rounding."""

    device: DeviceName = "auto"
    """Where to train; auto takes the first of cuda, mps, cpu that is there."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the layers and the sampler; auto does so on cuda, where it pays."""
    time_limit: float | None = None
    """Seconds after which to save and stop; the same command goes on from there."""
    micro_batch: int | None = None
    """Of text, sequences that a GPU works on at a time; none: its whole share of the batch. Fewer take less memory."""
    recompute: bool = False
    """Keep the states between loops only and compute the rest again in the backward pass: for large models."""
    parallel: Parallel = "ddp"
    """On several GPUs, started by torchrun: ddp has the whole model on each, fsdp a share of every weight."""
    keep: tuple[int, ...] = ()
    """Steps whose checkpoints are kept for good, besides the last and the best; one is made at each of them."""
    log: tuple[TrackerName, ...] = ()
    """Besides metrics.jsonl, log to tensorboard or wandb."""
    progress: bool = True
    """Show a progress bar on a terminal."""

    def __post_init__(self) -> None:
        if self.time_limit is not None and not self.time_limit >= 0:
            raise InputError(f"time_limit={self.time_limit}: allowed is 0 seconds or more")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise InputError(f"micro_batch={self.micro_batch}: allowed is 1 or more")
        if any(step < 1 for step in self.keep):
            raise InputError(f"keep={self.keep}: allowed are steps, 1 or more")


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
    with noted_signals() as caught, ProgressLines(session.progress and Ranks.told().first) as lines:
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
    began: float = field(default_factory=time.monotonic)
    """Since when the time limit counts, for all of them: some begin only when others have been built."""

    def __post_init__(self) -> None:
        self._size, self._share, self._shared_until = 1, 0.0, self.began

    def out_of_time(self, session: Session) -> bool:
        return session.time_limit is not None and time.monotonic() - self.began >= session.time_limit

    def share_time(self, size: int | None = None) -> float:
        """Seconds that each run has been charged that was there all along: time is shared alike by as many as train,
        from now on by ``size``."""
        now = time.monotonic()
        self._share += (now - self._shared_until) / self._size
        self._shared_until, self._size = now, size or self._size
        return self._share


def train_stepwise(
    config: TrainConfig, directory: Path | str, session: Session, company: Company, label: str = ""
) -> Generator[None, None, Outcome]:
    """What ``train`` does, as a generator that gives way to others after every step."""
    device = pick_device(session.device)
    ranks = Ranks.join(device)
    if ranks.together and config.task is not None:
        raise InputError(f"{ranks.size} ranks: a task trains on one; language models train on several")
    if device.type == "cuda" and ranks.together:
        device = torch.device("cuda", ranks.local)
    config = resolve(config, Path(directory))
    if config.task is None:
        check_shares(config, ranks, session.micro_batch)
    run = _start(Path(directory), config, ranks)
    try:
        result = run.read_result()
        if result is not None:
            return Outcome(True, result["step"], "already finished", result)
        return (yield from _Trainer(run, session, device, company, ranks).train(label or run.directory.name))
    finally:
        run.close()


def resolve(config: TrainConfig, directory: Path) -> TrainConfig:
    """The config with all that it leaves to the task, or to the text, filled in and checked; a run that is there
    already goes on with its own text only."""
    if config.task is not None:
        return config.resolved()
    begun = directory / "config.json"
    known = config.data_fingerprint or (read_config(begun).data_fingerprint if begun.exists() else "")
    data = open_data(replace(config, data_fingerprint=known))
    data.sequences("train", max(1, config.model.max_len))
    data.sequences("validation", max(1, config.model.max_len))
    return config.resolved_for_text(data.vocab_size, data.fingerprint)


def _start(directory: Path, config: TrainConfig, ranks: Ranks) -> Run:
    """The run's directory, which the first rank makes or checks for all."""
    if not ranks.first:
        if ranks.agree(0):
            raise RunError(f"run {directory}: the first rank cannot start it, and says why")
        return Run(directory, config)
    try:
        run = Run.start(directory, config)
    except InputError:
        ranks.agree(1)
        raise
    ranks.agree(0)
    return run


class _Trainer:
    def __init__(self, run: Run, session: Session, device: torch.device, company: Company, ranks: Ranks) -> None:
        self.run, self.config, self.session, self.device = run, run.config, session, device
        self.company, self.ranks = company, ranks
        self.charged = company.share_time()
        self.compiled = session.compile == "on" or (session.compile == "auto" and device.type == "cuda")
        if self.compiled and device.type == "cuda":
            wake_compiler()
        self.best: Best | None = None
        self.step = 0
        self.seconds = 0.0
        state = self.run.resume_point()
        if state:
            self.step, self.best, self.seconds = state.step, state.best, state.seconds
        self.logged_at, self.logged_seconds = self.step, self.seconds
        self._build(self.config.plan_of_checkpoint(self.step))
        if state:
            with self.run.advising(state.step):
                checkpoint.load_weights(self.run.checkpoints, state.step, self.model)
                tensors = checkpoint.load_optimizer(self.run.checkpoints, state.step)
                load_optimizer_tensors(self.model, self.optimizers, tensors)
        self.trackers: list[Tracker] = []
        if ranks.first:
            self.run.open_metrics(keep_bytes=state.metrics_bytes if state else 0)
            self.trackers = open_trackers(self.session.log, self.run.directory, codec.to_json(self.config), self.step)

    def _build(self, plan: LoopPlan) -> None:
        """The model with this plan, its optimizers, and what it is trained on."""
        # The config of one stage, in which nothing grows.
        config = replace(self.config, model=replace(self.config.model, plan=plan), stacking=StackingConfig())
        with compiling_ahead(config, self.device, self.compiled):
            self.model = build_model(config, self.device)
        self.model.loop.recompute = self.session.recompute
        done, compiled = self.step, self.compiled
        self.work: Work
        if config.task is not None:
            captured = self.device.type == "cuda"
            self.work = TaskWork(TaskStep(config, self.model, done, compiled, captured))
        else:
            parallel, micro_batch = self.session.parallel, self.session.micro_batch
            data = open_data(config)
            self.work = TextWork(TextStep(config, self.model, data, done, compiled, self.ranks, parallel, micro_batch))
        self.optimizers = self.work.step.optimizers

    def train(self, label: str) -> Generator[None, None, Outcome]:
        config = self.config
        self.line = self.company.lines.add(label, config.steps, self.step, self.best.shown if self.best else None)
        try:
            while self.step < config.steps and not self._solved():
                self._grow()
                self.work.step()
                self.step += 1
                self._charge()
                if self._due(config.log_every):
                    self._log(self._report())
                if self._due(config.eval_every):
                    self._report()
                    self._evaluate()
                    self._save()
                elif self.step in self.session.keep:
                    self._report()
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

    def _grow(self) -> None:
        """With gradual stacking, go over to the deeper model when its time has come."""
        stacking = self.config.stacking
        if not stacking.active or self.work.step.config.model.plan == stacking.plan_at(self.step):
            return
        weights, optimizer = self._tensors()
        before, after = len(self.model.loop.layers), stacking.layers_at(self.step)
        self.best = None  # of a smaller model, which is not what the run is about
        self._build(stacking.plan_at(self.step))
        checkpoint.put_weights(self.model, grow(weights, before, after, stacking.block), "grown model")
        load_optimizer_tensors(self.model, self.optimizers, grow(optimizer, before, after, stacking.block))

    def _charge(self) -> None:
        """Count the time since the last step, or this run's share of it where others train beside it."""
        before, self.charged = self.charged, self.company.share_time()
        self.seconds += self.charged - before

    def _report(self) -> StepReport:
        try:
            return self.work.step.report()
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
        return target is not None and self.best is not None and self.best.score >= target

    def _signal(self) -> int | None:
        return self.company.caught[0] if self.company.caught else None

    def _why_stop(self) -> str:
        """Why to stop now, which the first rank decides for all."""
        over = self.company.out_of_time(self.session)
        number = self.ranks.agree(self.company.caught[0] if self.company.caught else -1 if over else 0)
        if number > 0 and not self.company.caught:
            self.company.caught.append(number)
        return stopped_by(number) if number > 0 else "time limit" if number else ""

    def _log(self, report: StepReport) -> None:
        self._charge()
        values = {"loss": report.loss, "grad_norm": report.grad_norm, "lr": report.lr}
        values |= {f"cosine {group}": float(cosine) for group, cosine in self.work.step.cosines.items()}
        steps, seconds = self.step - self.logged_at, self.seconds - self.logged_seconds
        speed = self.work.speed(steps, max(seconds, 1e-9))
        self.logged_at, self.logged_seconds = self.step, self.seconds
        self.line.speed(report.loss, speed)
        if self.ranks.first:
            self.run.log({"step": self.step, **values, "seconds": self.seconds, **speed})
        for tracker in self.trackers:
            tracker.log(self.step, values | speed)

    def _evaluate(self) -> None:
        self._charge()
        began = self.seconds
        found = self.work.validate()
        if not math.isfinite(found.values["validation_loss"]):
            raise self._diverged(self.step, f"validation loss {found.values['validation_loss']}")
        if self.best is None or found.score > self.best.score:
            self.best = Best(self.step, found.score, found.shown)
        self._charge()
        self.line.measured(found.shown)
        if self.ranks.first:
            self.run.log({"step": self.step, **found.values, "seconds": self.seconds})
        for tracker in self.trackers:
            tracker.log(self.step, found.values)
        self._charge()
        self.logged_seconds += self.seconds - began  # what evaluating took is not training's

    def _tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Weights and optimizer state, each tensor in one piece."""
        weights = {name: whole(tensor) for name, tensor in self.model.state_dict().items()}
        optimizer = optimizer_tensors(self.model, self.optimizers)
        return weights, {name: whole(tensor) for name, tensor in optimizer.items()}

    def _save(self) -> None:
        weights, optimizer = self._tensors()
        for name, tensor in (weights | optimizer).items():
            if not tensor.isfinite().all():
                raise self._diverged(self.step, f"{name} is not finite")
        if self.ranks.first:
            state = TrainState(self.step, self.run.fingerprint, self.run.sync_metrics(), self.best, self.seconds)
            self.run.save(weights, optimizer, state, self.session.keep)
        self.ranks.wait()

    def _finish(self) -> dict[str, Any]:
        """Measure the best checkpoint on the test split, and write down the run's result."""
        config = self.config
        best = self.run.find("best")
        checkpoint.load_weights(self.run.checkpoints, best.step, self.model)
        found = self.work.test()
        self._charge()
        result = {
            "step": self.step,
            **found,
            "best_step": best.step,
            "best_validation": self.best.shown if self.best else "",
            "parameters": config.model.parameters(),
            "seconds": self.seconds,
            "config": self.run.fingerprint,
            "seed": config.seed,
            **environment(self.device),
        }
        if self.ranks.first:
            self.run.write_result(result)
        self.ranks.wait()
        return result


def build_model(config: TrainConfig, device: torch.device) -> LoopedTransformer:
    """The run's starting weights, drawn on the CPU so that they are the same for every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return LoopedTransformer(config.model).to(device)
