"""What a trainer promises: it stops when asked, goes on as if it had not, and never keeps what is broken."""

from __future__ import annotations

import importlib.util
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from loopt import InputError, LoopedTransformer
from loopt.errors import ConfigError, RunError
from loopt.runs import AdafactorConfig, AdamWConfig, Run, TrainConfig
from loopt.runs.optimizers import OPTIMIZERS, with_optimizer
from loopt.scoring.exact_match import EVALUATION_SEED
from loopt.tasks import PHop
from loopt.training import DivergedError, Session, train
from loopt.training.clock import SharedClock
from loopt.training.learner import Evaluation
from loopt.training.optim import build_optimizers, learning_rate
from loopt.training.signals import catch_signals
from loopt.training.task_learner import TaskLearner, backward
from loopt.training.trackers import TrackerName
from loopt.training.trainer import build_model, train_stepwise
from loopt.training.update import update
from tiny_runs import (
    CPU,
    TINY,
    Child,
    Strike,
    assert_same,
    finished,
    last_step,
    metrics,
    result,
    snapshot,
    stopped,
    task_of,
    tensors,
    tiny,
    with_source,
)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(TINY, tmp_path_factory.mktemp("runs") / "unbroken")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "step"),
    [(signal.SIGTERM, 1), (signal.SIGTERM, 6), (signal.SIGTERM, 24), (signal.SIGINT, 9), (signal.SIGHUP, 9)],
)
def test_a_signal_saves_and_stops(number: signal.Signals, step: int, unbroken: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = Child(TINY, run, strike=Strike(number, step=step)).wait()
    assert child.exitcode == 0
    expected = {"finished": False, "step": step, "reason": f"stopped by {number.name}", "result": {}, "signal": number}
    assert child.outcome == expected
    assert last_step(run) == step
    assert_same(finished(TINY, run), unbroken)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_nohup_is_respected(handler: signal.Handlers) -> None:
    before = signal.signal(signal.SIGHUP, handler)
    try:
        with catch_signals() as caught:
            os.kill(os.getpid(), signal.SIGHUP)
        assert caught == ([] if handler == signal.SIG_IGN else [signal.SIGHUP])
        assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's limit on a process's memory")
def test_a_billion_steps_take_no_more_memory_than_a_few(tmp_path: Path) -> None:
    """Neither lists nor tensors with an entry for every step: one byte each would be more than is allowed here."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    in_use = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 5 * 10**8, limits[1]))
    try:
        assert train(tiny(steps=10**9), tmp_path / "run", replace(CPU, time_limit=0)).step == 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.slow
def test_a_run_whose_terminal_is_gone_saves_and_says_why_it_ended(unbroken: Path, tmp_path: Path) -> None:
    """Its progress bar has nowhere to go then, and whoever asks for the exit code wants to know of the signal."""
    trains = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from tiny_runs import CPU, TINY, Path, train
from loopt.training import Callback
class Wait(Callback):
    def stepped(self, trainer):
        if trainer.step == 9:
            print("ready", flush=True)
            while os.isatty(1):
                time.sleep(0.01)
outcome = train(TINY, Path({str(tmp_path / "run")!r}), CPU, callbacks=[Wait()])
print(outcome.reason, flush=True)
sys.exit(128 + outcome.signal)
"""
    hangs_up = f"""
import os, pty, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as where no nohup started the tests
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.executable, [sys.executable, "-c", {trains!r}])
shown = b""
while b"ready" not in shown:
    shown += os.read(terminal, 1000)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ended = subprocess.run([sys.executable, "-c", hangs_up], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == str(128 + signal.SIGHUP)
    assert last_step(tmp_path / "run") == 10
    assert_same(finished(TINY, tmp_path / "run"), unbroken)


@pytest.mark.parametrize("operation", [17, 22, 28])
def test_a_signal_in_the_middle_of_a_save(operation: int, unbroken: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = Child(TINY, run, strike=Strike(signal.SIGTERM, file_operation=operation)).wait()
    assert child.struck_at.read_text()
    assert child.exitcode == 0
    assert child.outcome["step"] == last_step(run) < 24
    assert_same(finished(TINY, run), unbroken)


def test_a_time_limit_counts_from_when_the_first_run_of_a_process_began(tmp_path: Path) -> None:
    """A run that is built after others, which may take minutes, has no more time than they."""
    clock = SharedClock(began=time.monotonic() - 60)
    steps = train_stepwise(TINY, tmp_path, replace(CPU, time_limit=60), clock, [])
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert (end.value.value.finished, end.value.value.step, end.value.value.reason) == (False, 1, "time limit")


def test_evaluating_does_not_count_as_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it falls between two lines of the log: here a step takes a second, and evaluating a hundred."""
    now = 0.0
    take, validate = TaskLearner.train_step, TaskLearner.validate

    def slow_step(learner: TaskLearner) -> None:
        nonlocal now
        now += 1.0
        take(learner)

    def slow_validate(learner: TaskLearner) -> Evaluation:
        nonlocal now
        now += 100.0
        return validate(learner)

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(TaskLearner, "train_step", slow_step)
    monkeypatch.setattr(TaskLearner, "validate", slow_validate)
    train(tiny(log_every=4, eval_every=6), tmp_path, CPU)
    speeds = [
        line["examples_per_second"] for line in Run.load(tmp_path).read_metrics() if "examples_per_second" in line
    ]
    assert speeds == pytest.approx([float(TINY.batch_size)] * 6)


def test_no_time_at_all_is_one_step(unbroken: Path, tmp_path: Path) -> None:
    for step in range(1, 9):
        outcome = train(TINY, tmp_path, replace(CPU, time_limit=0))
        assert (outcome.finished, outcome.step, outcome.reason) == (False, step, "time limit")
        assert last_step(tmp_path) == step
    assert train(TINY, tmp_path, CPU).finished
    assert_same(tmp_path, unbroken)


def test_a_finished_run_is_left_alone(unbroken: Path) -> None:
    before = snapshot(unbroken)
    outcome = train(TINY, unbroken, CPU)
    assert (outcome.finished, outcome.step, outcome.reason) == (True, 24, "already finished")
    assert outcome.result == Run.load(unbroken).read_result()
    assert snapshot(unbroken) == before


def test_a_solved_run_stops_early_and_stays_solved(tmp_path: Path) -> None:
    config = with_source(TINY, target_accuracy=0.01)
    outcome = train(config, tmp_path, CPU)
    assert (outcome.finished, outcome.step, outcome.reason) == (True, 6, "solved")
    before = snapshot(tmp_path)
    again = train(config, tmp_path, CPU)
    assert again.finished
    assert again.result == outcome.result
    assert snapshot(tmp_path) == before


def test_a_run_killed_on_its_last_line_only_writes_its_result(unbroken: Path, tmp_path: Path) -> None:
    assert train(TINY, tmp_path, CPU).finished
    (tmp_path / "result.json").unlink()
    before = snapshot(tmp_path)
    assert train(TINY, tmp_path, CPU).finished
    after = snapshot(tmp_path)
    assert {path.name for path in after.keys() - before.keys()} == {"result.json"}
    assert [content for _, content in before.values()] == [after[path][1] for path in before]
    assert_same(tmp_path, unbroken)


def test_the_best_checkpoint_is_kept_and_measured(unbroken: Path) -> None:
    evaluations = {entry["step"]: entry["validation_accuracy"] for entry in metrics(unbroken) if "loss" not in entry}
    assert list(evaluations) == [6, 12, 18, 24]
    assert result(unbroken)["best_step"] == max(evaluations, key=lambda step: evaluations[step])
    assert Run.load(unbroken).find("best").step == result(unbroken)["best_step"]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adafactor", "adamw", "muon"])
def test_every_optimizer_learns_and_repeats_itself(optimizer: str, tmp_path: Path) -> None:
    config = tiny(optimizer, steps=40, eval_every=20)
    for name in ("one", "two"):
        assert train(config, tmp_path / name, CPU).finished
    assert_same(tmp_path / "one", tmp_path / "two")
    losses = [entry["loss"] for entry in metrics(tmp_path / "one") if "loss" in entry]
    assert sum(losses[-5:]) < sum(losses[:5])


@pytest.mark.parametrize("train_examples", [None, 10])
def test_training_is_the_plain_loop(train_examples: int | None, tmp_path: Path) -> None:
    """Step by step: the training split's next examples, their loss, the clipped gradient, AdamW at the rate due."""
    config = with_source(tiny(log_every=1, seed=4), train_examples=train_examples)
    train(config, tmp_path, CPU)
    torch.manual_seed(config.seed)
    model = LoopedTransformer(config.resolved().model)
    assert isinstance(config.optim, AdamWConfig)
    adamw = torch.optim.AdamW(model.parameters(), betas=config.optim.betas, weight_decay=0.0)
    expected = []
    for step in range(config.steps):
        rows = [index % (train_examples or 10**9) for index in range(4 * step, 4 * step + 4)]
        batch = task_of(config).sample(torch.tensor(rows), config.seed, "train")
        loss = torch.nn.functional.cross_entropy(model(batch.tokens)[:, -1], batch.targets[:, -1])
        adamw.zero_grad()
        loss.backward()
        norm = torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None]).norm()
        for weight in model.parameters():
            weight.grad *= min(1.0, config.optim.clip_norm / norm)
        lr = learning_rate(step, config.steps, config.optim.lr, config.optim.warmup_steps)
        adamw.param_groups[0]["lr"] = lr
        adamw.step()
        expected.append({"step": step + 1, "loss": loss.item(), "grad_norm": norm.item(), "lr": lr})
    logged = [entry for entry in metrics(tmp_path) if "loss" in entry]
    assert logged == [pytest.approx(entry, rel=1e-4) for entry in expected]


def test_seeds_differ(unbroken: Path, tmp_path: Path) -> None:
    other = finished(tiny(seed=1), tmp_path / "run")
    assert metrics(other)[0]["loss"] != metrics(unbroken)[0]["loss"]
    ours, theirs = tensors(unbroken, 24), tensors(other, 24)
    assert any(not torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("seed", [0, 1])
def test_validation_examples_are_not_among_the_training_examples(seed: int) -> None:
    task = PHop(p=(2,), n=40, alphabet=4)

    def rows(*request: Any) -> set[tuple[int, ...]]:
        return {tuple(row) for row in task.sample(*request).tokens.tolist()}

    training = rows(range(5000), seed, "train")
    validation = rows(range(2000), EVALUATION_SEED, "validation")
    assert len(training) == 5000
    assert not training & validation
    assert not rows(range(2000), EVALUATION_SEED, "test") & (training | validation)


def test_a_training_set_is_gone_through_again(tmp_path: Path) -> None:
    one_batch = with_source(tiny(steps=60, eval_every=60), train_examples=TINY.batch_size)
    train(one_batch, tmp_path, CPU)
    losses = [entry["loss"] for entry in metrics(tmp_path) if "loss" in entry]
    assert losses[-1] < 0.3 * losses[0]


def test_divergence_is_told_and_not_kept(tmp_path: Path) -> None:
    config = tiny(steps=48, log_every=1, model=replace(TINY.model, norm_placement="none"))
    config = replace(config, optim=replace(config.optim, lr=1e38, warmup_steps=48))
    run = stopped(config, tmp_path / "run", 1)
    with pytest.raises(DivergedError) as error:
        train(config, run, CPU)
    message = str(error.value)
    assert "diverged at step 2 (" in message
    assert "the update was not applied" in message
    assert "the last checkpoint, of step 1, is finite" in message
    assert "lower optim.lr (now 1e+38)" in message
    assert "\n" not in message
    assert last_step(run) == 1
    assert all(tensor.isfinite().all() for tensor in tensors(run, 1).values())
    assert all(math.isfinite(entry["loss"]) for entry in metrics(run))


@pytest.mark.parametrize(
    ("optimizer", "eval_every", "what"),
    [
        ("adafactor", 6, "token_embedding.weight is not finite"),
        ("adafactor", 1, "validation loss nan"),
        ("adamw", 1, "validation loss nan"),
        ("muon", 1, "validation loss nan"),
    ],
)
def test_an_update_that_breaks_the_weights_is_not_kept(
    optimizer: str, eval_every: int, what: str, tmp_path: Path
) -> None:
    """The loss and the gradient were fine; what the update made of the weights is not."""
    config = tiny(optimizer, eval_every=eval_every, model=replace(TINY.model, norm_placement="none"))
    lr = 3e38 if optimizer == "adafactor" else 1e37
    config = replace(config, optim=replace(config.optim, lr=lr, warmup_steps=0))
    if optimizer == "adafactor":
        assert isinstance(config.optim, AdafactorConfig)
        config = replace(config, optim=replace(config.optim, scale_parameter=False))
    with pytest.raises(DivergedError) as error:
        train(config, tmp_path, replace(CPU, time_limit=0))
    assert f"diverged at step 1 ({what}); no checkpoint was kept yet. Try" in str(error.value)
    assert not list((tmp_path / "checkpoints").iterdir())
    assert not any("validation_loss" in entry for entry in metrics(tmp_path))


def test_an_update_that_is_refused_changes_nothing() -> None:
    config = replace(TINY, model=replace(TINY.model, norm_placement="none", attention_scale=1e6)).resolved()
    for name in ("adafactor", "adamw", "muon"):
        model = build_model(config, torch.device("cpu"))
        optimizers = build_optimizers(OPTIMIZERS[name](), model)
        with torch.no_grad():
            model.token_embedding.weight.mul_(1e18)  # its square, an attention score, becomes too large for float32
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        batch = task_of(config).sample(range(4), 0, "train")
        loss = backward(model, [batch])
        _, finite = update(model.parameters(), optimizers, loss, torch.tensor(1.0), clip_norm=1.0)
        assert not finite
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: replace(TINY, steps=0), "steps=0: allowed is 1 to 1000000000"),
        (lambda: replace(TINY, batch_size=-1), "batch_size=-1: allowed is 1 to 1000000000"),
        (lambda: replace(TINY, seed=-1), "seed=-1: allowed is 0 to"),
        (lambda: with_source(TINY, train_examples=0), "train_examples=0: allowed is 1 "),
        (lambda: with_source(TINY, target_accuracy=1.5), "target_accuracy=1.5: allowed is more than 0, at most 1"),
        (lambda: with_source(TINY, target_accuracy=math.nan), "target_accuracy=nan: allowed is"),
        (lambda: replace(TINY, steps=4), "optim.warmup_steps=5: allowed is at most steps=4"),
        (lambda: with_optimizer(TINY.optim, "sgd"), "optim.name=sgd: allowed is adafactor | adamw | muon"),
        (lambda: AdafactorConfig(lr=math.nan), "optim.lr=nan: allowed is more than 0"),
        (lambda: AdamWConfig(betas=(0.9, 1.0)), "optim.betas=(0.9, 1.0): allowed is"),
        (lambda: AdamWConfig(weight_decay=math.nan), "optim.weight_decay=nan: allowed is 0 or more"),
        (lambda: AdamWConfig(clip_norm=0.0), "optim.clip_norm=0.0: allowed is more than 0"),
        (
            lambda: replace(TINY, model=replace(TINY.model, vocab_size=2)).resolved(),
            "model.vocab_size=2: allowed is 4 or more, as many as phop has tokens",
        ),
        (
            lambda: replace(TINY, model=replace(TINY.model, max_len=7)).resolved(),
            "model.max_len=7: allowed is 8 or more, the length of phop",
        ),
    ],
)
def test_impossible_configs_name_the_field(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build()
    assert str(error.value).startswith(message)


def test_numbers_of_another_type_are_told_before_anything_is_written(tmp_path: Path) -> None:
    optim = replace(TINY.optim, warmup_steps=2.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"optim\.warmup_steps=2\.0: allowed is a value of type int"):
        train(replace(TINY, optim=optim), tmp_path / "run", CPU)
    assert not (tmp_path / "run").exists()


def test_whole_numbers_do_for_fractions(tmp_path: Path) -> None:
    config = with_source(replace(TINY, optim=replace(TINY.optim, weight_decay=0)), target_accuracy=1)
    assert train(config, tmp_path, replace(CPU, time_limit=0)).step == 1
    assert Run.load(tmp_path).find("last").step == 1
    assert train(Run.load(tmp_path).config, tmp_path, replace(CPU, time_limit=0)).step == 2


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_tracker_that_is_not_installed_is_told_first(tracker: TrackerName, tmp_path: Path) -> None:
    if importlib.util.find_spec(tracker):
        pytest.skip(f"{tracker} is installed")
    with pytest.raises(InputError, match=f"log={tracker}: not installed; pip install {tracker}"):
        train(TINY, tmp_path, replace(CPU, log=(tracker,)))
    assert not (tmp_path / "metrics.jsonl").read_bytes()


def test_a_tracker_that_is_not_known_is_told_first(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"log=paper: allowed is tensorboard \| wandb"):
        train(TINY, tmp_path, replace(CPU, log=("paper",)))  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cuda", "mps", "abacus"])
def test_a_device_that_is_not_there(device: Any, tmp_path: Path) -> None:
    if (device == "cuda" and torch.cuda.is_available()) or (device == "mps" and torch.backends.mps.is_available()):
        pytest.skip(f"{device} is there")
    with pytest.raises(InputError, match=rf"device={device}: not available here; allowed is auto \| "):
        train(TINY, tmp_path, Session(device=device))


def test_two_processes_cannot_train_one_run(unbroken: Path, tmp_path: Path) -> None:
    run = Run.start(tmp_path / "run", TINY.resolved())
    second = Child(TINY, tmp_path / "run").wait()
    assert second.outcome["error"] == f"run {tmp_path / 'run'} is being trained by another process"
    run.close()
    assert_same(finished(TINY, tmp_path / "run"), unbroken)


def test_a_run_goes_on_with_its_own_config_only(tmp_path: Path) -> None:
    stopped(TINY, tmp_path / "run", 7)
    before = snapshot(tmp_path / "run")
    other: TrainConfig = replace(tiny(seed=3), optim=replace(TINY.optim, lr=0.5))
    with pytest.raises(RunError) as error:
        train(other, tmp_path / "run", CPU)
    assert "was started with optim.lr=0.01, now 0.5 (and 1 more): choose another directory" in str(error.value)
    assert snapshot(tmp_path / "run") == before


def test_a_task_has_no_micro_batches(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="micro_batch=2: allowed for language models"):
        train(tiny(), tmp_path / "run", Session(device="cpu", micro_batch=2))
    assert not (tmp_path / "run").exists()


def test_ranks_that_no_launcher_would_set_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(InputError, match="WORLD_SIZE=two: allowed is a number, as torchrun sets it"):
        train(tiny(), tmp_path / "run", CPU)
