"""Training one run, from wherever it stands to its end, a time limit or a signal.

Nothing about a run lives only in memory: examples are functions of their index, the learning rate is a function of the
step, and a checkpoint holds the rest. So a run that is killed and started again does what an unbroken one does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopt.devices import pick_device
from loopt.errors import InputError, RunError
from loopt.kernels import start_compile_workers
from loopt.model import LoopedTransformer
from loopt.plan import LoopPlan
from loopt.runs import Best, Run, TrainConfig, TrainState, checkpoint, codec
from loopt.runs.stacking import StackingConfig
from loopt.runs.start import Start, codec_to_start_with, load_start, with_weights_named
from loopt.training.callbacks import Callback
from loopt.training.clock import SharedClock
from loopt.training.environment import environment
from loopt.training.kernel_warmup import warming_up_kernels
from loopt.training.learner import NonFiniteError, StepReport
from loopt.training.learners import learner_for
from loopt.training.optim import load_optimizer_tensors, optimizer_tensors
from loopt.training.outcome import DivergedError, Outcome
from loopt.training.parallel import Ranks, full_tensor
from loopt.training.progress import Display, ProgressLine
from loopt.training.session import Session
from loopt.training.signals import catch_signals, stopped_by
from loopt.training.stacking import GradualStacking
from loopt.training.threads import training_threads
from loopt.training.trackers import open_trackers


def train(
    config: TrainConfig,
    directory: Path | str,
    session: Session | None = None,
    label: str = "",
    callbacks: Sequence[Callback] = (),
    display: Display | None = None,
) -> Outcome:
    """Trains ``config`` in ``directory``, resuming what is there; a finished run returns its result at once. Progress
    calls it ``label``, or by its directory's name, and is shown in ``display``, or in one of its own."""
    session = session or Session()
    if display is None:
        with Display(session.progress and Ranks.from_environment().first) as display:
            return train(config, directory, session, label, callbacks, display)
    device = pick_device(session.device)
    with catch_signals() as caught, training_threads([config], session, device) as threads:
        display.say_once(threads)
        listening = [ProgressLine(display, label or Path(directory).name), *callbacks]
        steps = train_stepwise(config, directory, session, SharedClock(), caught, listening)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome


def train_stepwise(
    config: TrainConfig,
    directory: Path | str,
    session: Session,
    clock: SharedClock,
    caught: list[int],
    callbacks: Sequence[Callback] = (),
) -> Generator[None, None, Outcome]:
    """Does what ``train`` does, as a generator that yields after every step, so that several runs can take turns. A
    signal in ``caught`` asks all of them to stop."""
    device = pick_device(session.device)
    ranks = Ranks.join(device)
    if device.type == "cuda" and ranks.distributed:
        device = torch.device("cuda", ranks.local)
    learner_for(config.source).check(config, session, ranks)
    run = _start(Path(directory), config, ranks)
    try:
        result = run.read_result()
        if result is not None:
            return Outcome(True, result["step"], "already finished", result)
        trainer = Trainer(run, session, device, ranks, clock, caught, callbacks if ranks.first else ())
        return (yield from trainer.train())
    finally:
        run.close()


def prepare(config: TrainConfig, directory: Path) -> TrainConfig:
    """Returns the config as the run will keep it: its source ready to be read, the model's sizes filled in, and the
    weights that it starts from named."""
    codec = codec_to_start_with(config.start, directory)
    ready = replace(config, source=config.source.prepared(directory, codec)).resolved()
    return with_weights_named(ready, directory)


def _start(directory: Path, config: TrainConfig, ranks: Ranks) -> Run:
    """Returns the run's directory, which the first rank makes or checks for all."""
    if not ranks.first:
        if ranks.broadcast(0):
            raise RunError(f"run {directory}: the first rank cannot start it, and says why")
        return Run(directory, prepare(config, directory))
    try:
        run = Run.start(directory, prepare(config, directory))
    except InputError:
        ranks.broadcast(1)
        raise
    ranks.broadcast(0)
    return run


class Trainer:
    """The training of one run in this process. Callbacks may look at all that is public here."""

    def __init__(
        self,
        run: Run,
        session: Session,
        device: torch.device,
        ranks: Ranks,
        clock: SharedClock,
        caught: list[int],
        callbacks: Sequence[Callback],
    ) -> None:
        self.run, self.config, self.session = run, run.config, session
        self.best: Best | None = None
        self.started: Start | None = None
        """Where the first weights are from, if they were loaded just now."""
        self._device, self._ranks, self._clock, self._caught = device, ranks, clock, caught
        self._charged, self._seconds = clock.seconds_each(), 0.0
        if session.compiles_on(device) and device.type == "cuda":
            start_compile_workers()
        state = run.resume_point()
        if state:
            self._resume(state)
        else:
            self._build(self.config.plan_of_checkpoint(0), steps_done=0)
            if self.config.start.active:
                self.started = load_start(self.config, self.learner.model)
                self.learner.wait_for_writes()
        self._logged_at, self._logged_seconds = self.step, self._seconds
        self._callbacks = [*callbacks, *([GradualStacking()] if self.config.stacking.active else [])]
        if ranks.first:
            run.cut_metrics(state)
            self._callbacks += open_trackers(session.log, run.directory, codec.to_json(self.config), self.step)

    @property
    def step(self) -> int:
        return self.learner.steps_done

    def _build(self, plan: LoopPlan, steps_done: int) -> None:
        """Builds the model with this plan, and the learner that trains it."""
        # The config of one stage, in which nothing grows.
        config = replace(self.config, model=replace(self.config.model, plan=plan), stacking=StackingConfig())
        with warming_up_kernels(config, self._device, self.session.compiles_on(self._device)):
            model = build_model(config, self._device)
        model.loop.recompute = self.session.recompute
        self.learner = learner_for(config.source)(config, model, steps_done, self.session, self._ranks)

    def _resume(self, state: TrainState) -> None:
        """Builds the model, and loads what a checkpoint has."""
        self.best, self._seconds = state.best, state.seconds
        self._build(self.config.plan_of_checkpoint(state.step), state.step)
        with self.run.advising(state.step):
            tensors = checkpoint.load_optimizer(self.run.checkpoints, state.step)
            load_optimizer_tensors(self.learner.model, self.learner.optimizers, tensors)
            checkpoint.load_weights(self.run.checkpoints, state.step, self.learner.model)
        self.learner.wait_for_writes()

    def replace_model(self, plan: LoopPlan, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        """Goes on with another plan, from these weights and this optimizer state."""
        self.best = None  # of another model, which is not what the run is about
        self._build(plan, self.step)
        load_optimizer_tensors(self.learner.model, self.learner.optimizers, optimizer)
        checkpoint.put_weights(self.learner.model, weights, "grown model")
        self.learner.wait_for_writes()
        self._tell(Callback.grown, plan)

    def train(self) -> Generator[None, None, Outcome]:
        """Trains to the end, a time limit or a signal, and yields after every step."""
        try:
            self._tell(Callback.begun)
            if self.config.start.active and self.step == 0:
                self._save()  # the other run may change or go from now on
            while self.step < self.config.steps and not self._solved():
                self._tell(Callback.stepping)
                self.learner.train_step()
                self._charge()
                self._do_what_is_due()
                reason = self._why_stop()
                if reason:
                    self._report()
                    self._save()
                    return Outcome(False, self.step, reason, signal=self._signal())
                self._tell(Callback.stepped)
                yield
            self._tell(Callback.finished)
            reason = "solved" if self._solved() else "all steps done"
            return Outcome(True, self.step, reason, self._finish(), self._signal())
        finally:
            self._tell(Callback.closed)

    def _tell(self, event: Callable[..., None], *details: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, event.__name__)(self, *details)

    def _do_what_is_due(self) -> None:
        if self._due(self.config.log_every):
            self._log(self._report())
        if self._due(self.config.eval_every):
            self._report()
            self._evaluate()
            self._save()
        elif self.step in self.session.keep:
            self._report()
            self._save()
        elif self._device.type == "cpu":  # asking costs nothing here, and elsewhere the host would wait
            self._report()

    def _due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.config.steps

    def _charge(self) -> None:
        """Counts the time since the last step, or this run's share of it where others train beside it."""
        before, self._charged = self._charged, self._clock.seconds_each()
        self._seconds += self._charged - before

    def _report(self) -> StepReport:
        try:
            return self.learner.report()
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

    def _solved(self) -> bool:
        return self.best is not None and self.learner.solved(self.best.score)

    def _signal(self) -> int | None:
        return self._caught[0] if self._caught else None

    def _why_stop(self) -> str:
        """Returns why to stop now, which the first rank decides for all; empty: go on."""
        over = self._clock.out_of_time(self.session.time_limit)
        number = self._ranks.broadcast(self._caught[0] if self._caught else -1 if over else 0)
        if number > 0 and not self._caught:
            self._caught.append(number)
        return stopped_by(number) if number > 0 else "time limit" if number else ""

    def _log(self, report: StepReport) -> None:
        self._charge()
        values = {"loss": report.loss, "grad_norm": report.grad_norm, "lr": report.lr}
        values |= {f"cosine {group}": float(cosine) for group, cosine in self.learner.cosines.items()}
        steps, seconds = self.step - self._logged_at, self._seconds - self._logged_seconds
        speed = self.learner.throughput(steps, max(seconds, 1e-9))
        self._logged_at, self._logged_seconds = self.step, self._seconds
        if self._ranks.first:
            self.run.log({"step": self.step, **values, "seconds": self._seconds, **speed})
        self._tell(Callback.logged, values | speed)

    def _evaluate(self) -> None:
        self._charge()
        began = self._seconds
        found = self.learner.validate()
        if not math.isfinite(found.values["validation_loss"]):
            raise self._diverged(self.step, f"validation loss {found.values['validation_loss']}")
        if self.best is None or found.score > self.best.score:
            self.best = Best(self.step, found.score, found.shown)
        self._charge()
        if self._ranks.first:
            self.run.log({"step": self.step, **found.values, "seconds": self._seconds})
        self._tell(Callback.evaluated, found)
        self._charge()
        self._logged_seconds += self._seconds - began  # what evaluating took is not training's

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns weights and optimizer state by name, each tensor in full, after all steps that were started."""
        self.learner.synchronize()
        model, optimizers = self.learner.model, self.learner.optimizers
        weights = {name: full_tensor(tensor) for name, tensor in model.state_dict().items()}
        optimizer = {name: full_tensor(tensor) for name, tensor in optimizer_tensors(model, optimizers).items()}
        return weights, optimizer

    def _save(self) -> None:
        weights, optimizer = self.tensors()
        for name, tensor in (weights | optimizer).items():
            if not tensor.isfinite().all():
                raise self._diverged(self.step, f"{name} is not finite")
        if self._ranks.first:
            state = TrainState(self.step, self.run.fingerprint, self.run.sync_metrics(), self.best, self._seconds)
            self.run.save(weights, optimizer, state, self.session.keep)
        self._ranks.barrier()
        self._tell(Callback.saved)

    def _finish(self) -> dict[str, Any]:
        """Measures the best checkpoint on the test split, and writes down the run's result."""
        best = self.run.find(self.best.step if self.best else "last")
        checkpoint.load_weights(self.run.checkpoints, best.step, self.learner.model)
        found = self.learner.test()
        if not math.isfinite(found["loss"]):
            raise self._diverged(best.step, f"test loss {found['loss']}")
        self._charge()
        result = {
            "step": self.step,
            **found,
            "best_step": best.step,
            "best_validation": self.best.shown if self.best else "",
            "parameters": self.config.model.parameters(),
            "seconds": self._seconds,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "config": self.run.fingerprint,
            "seed": self.config.seed,
            **environment(self._device),
        }
        if self._ranks.first:
            self.run.write_result(result)
        self._ranks.barrier()
        return result


def build_model(config: TrainConfig, device: torch.device) -> LoopedTransformer:
    """Returns the run's starting weights, drawn on the CPU so that they are the same for every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return LoopedTransformer(config.model).to(device)
