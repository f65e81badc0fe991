"""Training language models: the tokens of each step, its gradient, going on after a kill, and each way of training."""

from __future__ import annotations

import math
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from loopt import InputError, LoopedTransformer, LoopPlan
from loopt.errors import ConfigError
from loopt.runs import AdamWConfig, Run, TrainConfig, checkpoint, codec
from loopt.runs.config import RegularizerConfig
from loopt.runs.loop_counts import LoopCounts
from loopt.runs.optimizers import with_optimizer
from loopt.runs.stacking import StackingConfig
from loopt.scoring import precision
from loopt.similarity import cosine_matrix, layer_groups
from loopt.text.source import Text
from loopt.text.token_data import TokenData
from loopt.training import Session, presets, train
from loopt.training.learner import Learner
from loopt.training.optim import learning_rate, load_optimizer_tensors
from loopt.training.parallel import Ranks
from loopt.training.stacking import grow
from loopt.training.task_learner import TaskLearner
from loopt.training.text_learner import TextLearner
from loopt.training.trainer import build_model, prepare
from tiny_runs import (
    CPU,
    TINY,
    Child,
    Strike,
    assert_same,
    finished,
    last_step,
    layers_of,
    metrics,
    result,
    snapshot,
    stopped,
    task_of,
    tensors,
    tiny,
    with_source,
)
from tiny_text_runs import prepared, rows_of_step, text_directory, tiny_text

GROUPS = ("query", "key", "value", "output", "up", "gate", "down")
needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def learner(
    config: TrainConfig,
    done: int = 0,
    micro_batch: int | None = None,
    device: str = "cpu",
    compiled: bool = False,
    recompute: bool = False,
) -> TextLearner:
    config = prepare(config, Path("nowhere"))
    model = build_model(config, torch.device(device))
    model.loop.recompute = recompute
    session = Session(compile="on" if compiled else "off", micro_batch=micro_batch)
    return TextLearner(config, model, done, session, Ranks())


def losses(one: TextLearner, steps: int = 10) -> list[float]:
    found = []
    for _ in range(steps):
        one.train_step()
        found.append(one.report().loss)
    return found


def logged(run: Path) -> list[dict[str, Any]]:
    return [entry for entry in metrics(run) if "loss" in entry]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tiny_text(), tmp_path_factory.mktemp("runs") / "unbroken")


# Tokens and their gradient


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["1x1", "2x2", "1x1+2x3+1x1"])
@pytest.mark.parametrize(("micro_batch", "done"), [(None, 0), (1, 0), (3, 50)])
def test_the_tokens_of_a_step_depend_on_data_seed_and_step_alone(plan: str, micro_batch: int, done: int) -> None:
    """Up to step 53 of 4 sequences each: some way into the second epoch, since there are 175."""
    for seed in (0, 7):
        config = tiny_text("adafactor", plan=plan, seed=seed, steps=60)
        one = learner(config, done, micro_batch)
        for number in range(done, done + 3):
            one.train_step()
            assert torch.equal(one.tokens, rows_of_step(config, number))
    assert not torch.equal(rows_of_step(config, 0), rows_of_step(replace(config, seed=0), 0))


def test_an_epoch_has_every_sequence_once_and_the_next_another_order() -> None:
    config = tiny_text(batch_size=25)  # a seventh of the 175
    epochs = [torch.cat([rows_of_step(config, 7 * epoch + step) for step in range(7)]) for epoch in range(2)]
    every = TokenData.open(text_directory()).read("train", range(175), 12)
    for epoch in epochs:
        assert sorted(epoch.tolist()) == sorted(every.tolist())
    assert not torch.equal(*epochs)


def test_training_is_the_plain_loop(tmp_path: Path) -> None:
    """Step by step: the next sequences, their loss, the clipped gradient, AdamW at the rate due."""
    config = tiny_text(log_every=1, seed=4)
    train(config, tmp_path, CPU)
    torch.manual_seed(config.seed)
    model = LoopedTransformer(replace(config.model, vocab_size=300))
    assert isinstance(config.optim, AdamWConfig)
    adamw = torch.optim.AdamW(model.parameters(), betas=config.optim.betas, weight_decay=0.0)
    expected = []
    for step in range(config.steps):
        rows = rows_of_step(config, step)
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        adamw.zero_grad()
        loss.backward()
        norm = torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None]).norm()
        for weight in model.parameters():
            weight.grad *= min(1.0, config.optim.clip_norm / norm)
        lr = learning_rate(step, config.steps, config.optim.lr, config.optim.warmup_steps)
        adamw.param_groups[0]["lr"] = lr
        adamw.step()
        expected.append({"step": step + 1, "loss": loss.item(), "grad_norm": norm.item(), "lr": lr})
    assert logged(tmp_path) == [pytest.approx(entry, rel=1e-4) for entry in expected]


def loss_and_gradient(one: TextLearner) -> tuple[float, Tensor]:
    one.load_batch()
    loss = one.accumulate_gradient(None)
    grads = [parameter.grad for parameter in one.model.parameters()]
    assert all(grad is not None and grad.dtype == torch.float32 for grad in grads)
    return loss.item(), torch.cat([grad.flatten() for grad in grads if grad is not None])


@pytest.mark.parametrize("options", [{"micro_batch": 1}, {"micro_batch": 2}, {"micro_batch": 3}, {"recompute": True}])
def test_micro_batches_and_recomputing_change_nothing(options: dict[str, Any]) -> None:
    config = tiny_text(plan="1x1+2x2")
    wanted, of_whole = loss_and_gradient(learner(config))
    loss, gradient = loss_and_gradient(learner(config, **options))
    assert loss == pytest.approx(wanted, rel=1e-6)
    torch.testing.assert_close(gradient, of_whole, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("micro_batch", [None, 1])
def test_a_copy_in_bfloat16_computes_and_float32_is_updated(
    micro_batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 48 sequences: of 4, an unlucky draw of them has 3% of rounding in its gradient.
    config = replace(tiny_text(batch_size=48), optim=replace(TINY.optim, lr=1e-5, warmup_steps=0))
    exact = learner(config)
    monkeypatch.setattr(precision, "BFLOAT16_ON", ("cpu",))
    rounded = learner(config, micro_batch=micro_batch)
    (loss, gradient), (wanted, exact_gradient) = loss_and_gradient(rounded), loss_and_gradient(exact)
    assert loss == pytest.approx(wanted, rel=0.01)
    assert (gradient - exact_gradient).norm() < 0.02 * exact_gradient.norm()
    before = rounded.model.token_embedding.weight.clone()
    for _ in range(3):
        rounded.train_step()
    moved = (rounded.model.token_embedding.weight - before).abs().max()
    assert 0 < moved < 5e-5  # too little for bfloat16 to see
    assert {parameter.dtype for parameter in rounded.computing.parameters()} == {torch.bfloat16}


def test_the_copy_learns_what_float32_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = losses(learner(tiny_text()))
    monkeypatch.setattr(precision, "BFLOAT16_ON", ("cpu",))
    assert losses(learner(tiny_text())) == pytest.approx(exact, rel=0.01)
    assert exact[-1] < 0.9 * exact[0]


# Going on


@pytest.mark.slow
@pytest.mark.parametrize(
    "strike",
    [
        Strike(signal.SIGKILL, step=3),
        Strike(signal.SIGKILL, step=7),
        Strike(signal.SIGKILL, file_operation=17),
        Strike(signal.SIGKILL, file_operation=30),
        Strike(signal.SIGTERM, step=6),
    ],
    ids=str,
)
def test_a_run_that_was_killed_or_stopped_goes_on(strike: Strike, unbroken: Path, tmp_path: Path) -> None:
    child = Child(tiny_text(), tmp_path / "run", strike=strike).wait()
    assert child.exitcode == (-signal.SIGKILL if strike.signal == signal.SIGKILL else 0)
    assert not (tmp_path / "run" / "result.json").exists()
    assert_same(finished(tiny_text(), tmp_path / "run"), unbroken)


def test_micro_batches_and_recomputing_may_change_on_the_way(unbroken: Path, tmp_path: Path) -> None:
    run = stopped(tiny_text(), tmp_path / "run", 5)
    assert train(tiny_text(), run, replace(CPU, micro_batch=3, recompute=True)).finished
    for ours, theirs in zip(metrics(run), metrics(unbroken), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)


def test_a_finished_run_is_left_alone(unbroken: Path) -> None:
    before = snapshot(unbroken)
    outcome = train(tiny_text(), unbroken, CPU)
    assert (outcome.finished, outcome.step, outcome.reason) == (True, 12, "already finished")
    assert snapshot(unbroken) == before


def test_data_may_be_moved(unbroken: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "here", tmp_path / "there"
    shutil.copytree(text_directory(), first)
    run = stopped(tiny_text(data=str(first)), tmp_path / "run", 5)
    first.rename(second)
    with pytest.raises(InputError, match=r"^data .*here: no index\.json there"):
        train(Run.load(run).config, run, CPU)
    assert train(with_source(Run.load(run).config, data=str(second)), run, CPU).finished
    assert_same(run, unbroken)


def test_other_data_under_a_run_are_refused_by_name(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(text_directory(), data)
    run = stopped(tiny_text(data=str(data)), tmp_path / "run", 5)
    before = snapshot(run)
    shutil.rmtree(data)
    shutil.copytree(text_directory(seed=1), data)
    known, found = (TokenData.open(text_directory(seed)).fingerprint for seed in (0, 1))
    for config, expected in (
        (
            tiny_text(data=str(data)),
            f"run {run} was started with source.fingerprint={known}, now {found}: choose another",
        ),
        (
            Run.load(run).config,
            f"data {data}: its fingerprint is {found}, the run was started on {known}; train on other",
        ),
    ):  # as the user gives it, and as the run has it
        with pytest.raises(InputError) as error:
            train(config, run, CPU)
        assert str(error.value).startswith(expected)
        assert "\n" not in str(error.value)
    assert snapshot(run) == before


def test_a_shard_cut_short_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(text_directory(), data)
    run = stopped(tiny_text(data=str(data)), tmp_path / "run", 5)
    before = snapshot(run)
    shard = data / "train-00001.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(InputError, match=r"^shard .*train-00001\.bin: \d+ bytes, the index says \d+ bytes; .* again$"):
        train(tiny_text(data=str(data)), run, CPU)
    assert snapshot(run) == before


REFUSED: dict[str, tuple[Callable[[], TrainConfig], dict[str, Any], str]] = {
    "no data": (lambda: tiny_text(data=""), {}, "data: which text? Allowed is a directory"),
    "small vocabulary": (
        lambda: tiny_text(model=replace(tiny_text().model, vocab_size=299)),
        {},
        "model.vocab_size=299: allowed is 300 or more, as many as text has tokens",
    ),
    "no length": (
        lambda: tiny_text(model=replace(tiny_text().model, max_len=0)),
        {},
        "model.max_len=0: allowed is 1 or more: a sequence's length",
    ),
    "long sequences": (
        lambda: tiny_text(model=replace(tiny_text().model, max_len=683)),
        {},
        f"length=683: data {text_directory()} has 683 test tokens, too few for one sequence; allowed is up to 6",
    ),
    "large micro-batches": (tiny_text, {"micro_batch": 5}, "micro_batch=5: allowed is 1 to 4, a rank's share"),
    "no micro-batch": (tiny_text, {"micro_batch": 0}, "micro_batch=0: allowed is 1 or more"),
    "no step": (tiny_text, {"keep": (0,)}, "keep=(0,): allowed is steps, 1 or more"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    build, options, message = REFUSED[name]
    with pytest.raises(InputError) as error:
        train(build(), tmp_path / "run", replace(CPU, **options))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_text_that_holds_nothing_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no validation documents; prepare it with a larger share of them \(--validation\)"
    ):
        train(tiny_text(data=str(prepared(tmp_path, validation=0.0))), tmp_path / "run", CPU)
    assert not (tmp_path / "run").exists()


def test_chosen_checkpoints_are_kept(tmp_path: Path) -> None:
    config = tiny_text(steps=20)
    plain, kept = tmp_path / "plain", tmp_path / "kept"
    train(config, plain, CPU)
    train(config, kept, replace(CPU, keep=(3, 4, 11)))
    assert_same(kept, plain)
    others = checkpoint.steps_in(plain / "checkpoints")
    assert set(others) == {16, 20, result(plain)["best_step"]}
    assert checkpoint.steps_in(kept / "checkpoints") == sorted({3, 4, 11, *others})
    assert Run.load(kept).find(3).step == 3


def test_what_was_kept_stays_when_another_session_goes_on(tmp_path: Path) -> None:
    config = tiny_text(steps=20)
    assert Child(config, tmp_path / "run", replace(CPU, keep=(3,)), Strike(signal.SIGTERM, step=5)).wait().outcome
    train(config, tmp_path / "run", CPU)
    assert checkpoint.steps_in(tmp_path / "run" / "checkpoints")[0] == 3


# The regularizer


@pytest.mark.parametrize(
    "config",
    [tiny_text(plan="4x1", log_every=1), tiny(model=replace(TINY.model, plan=LoopPlan.parse("4x1")))],
)
def test_a_regularizer_of_weight_0_changes_nothing(config: TrainConfig, tmp_path: Path) -> None:
    train(config, tmp_path / "without", CPU)
    train(replace(config, regularizer=RegularizerConfig(block=2)), tmp_path / "with", CPU)
    entries = [{k: v for k, v in entry.items() if "cosine" not in k} for entry in metrics(tmp_path / "with")]
    assert entries == metrics(tmp_path / "without")
    assert metrics(tmp_path / "with") != entries
    found, wanted = (tensors(tmp_path / name, config.steps) for name in ("with", "without"))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
@pytest.mark.parametrize("text", [True, False], ids=["text", "task"])
def test_a_large_weight_draws_the_blocks_together(optimizer: str, text: bool, tmp_path: Path) -> None:
    config = (tiny_text if text else tiny)(optimizer, steps=40, log_every=1, eval_every=40)
    config = replace(
        config,
        model=replace(config.model, plan=LoopPlan.parse("4x1"), feed_forward="swiglu"),
        optim=replace(config.optim, lr=0.05),
        regularizer=RegularizerConfig(block=2, weight=1000.0),
    )
    train(config, tmp_path, CPU)
    first, *_, last = logged(tmp_path)
    start = build_model(prepare(config, tmp_path), torch.device("cpu"))
    at_first = cosine_matrix([layer_groups(layer) for layer in layers_of(start)])
    for group in GROUPS:
        assert first[f"cosine {group}"] == pytest.approx(at_first[group].diagonal(2).mean().item(), abs=1e-6)
        assert last[f"cosine {group}"] > max(0.8, first[f"cosine {group}"] + 0.3)


# Stacking

GROWING = tiny_text(plan="6x1", log_every=1, stacking=StackingConfig(block=2, grow_at=(4, 9)))
KEEPING = replace(CPU, keep=(4, 5, 9, 10))


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "grown"
    assert train(GROWING, run, KEEPING).finished
    return run


def test_a_model_grows_at_its_steps(grown: Path) -> None:
    run = Run.load(grown)
    assert [entry["step"] for entry in logged(grown)] == list(range(1, 13))
    for step, plan in ((4, "2x1"), (5, "4x1"), (9, "4x1"), (10, "6x1"), (12, "6x1")):
        model = run.load_model(step)
        assert str(model.config.plan) == plan
        assert sum(weight.numel() for weight in model.parameters()) == model.config.parameters()
        assert model(torch.tensor([[1, 2, 3]])).isfinite().all()
    assert result(grown)["parameters"] == replace(GROWING.model, vocab_size=300).parameters()


@pytest.mark.parametrize(("before", "layers"), [(4, 2), (9, 4)])
def test_growing_copies_the_middle_block_and_trains_on(before: int, layers: int, grown: Path) -> None:
    """The step after a growth, from the checkpoint before it."""
    plan = LoopPlan.parse(f"{layers + 2}x1")
    stage = replace(GROWING, model=replace(GROWING.model, plan=plan), stacking=StackingConfig())
    one = learner(stage, done=before)
    saved = tensors(grown, before)
    weights, state = ({k: v for k, v in saved.items() if ("/" in k) == flag} for flag in (False, True))
    load_optimizer_tensors(one.model, one.optimizers, grow(state, layers, layers + 2, block=2))
    one.model.load_state_dict(grow(weights, layers, layers + 2, block=2))
    one.train_step()
    assert one.report().loss == logged(grown)[before]["loss"]
    after = tensors(grown, before + 1)
    assert all(torch.equal(weight, after[name]) for name, weight in one.model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, 4, 5, 9, 11])
def test_a_growing_run_goes_on(step: int, grown: Path, tmp_path: Path) -> None:
    run = stopped(GROWING, tmp_path / "run", step)
    assert str(Run.load(run).load_model("last").config.plan) == f"{2 + 2 * (step > 4) + 2 * (step > 9)}x1"
    assert_same(finished(GROWING, run), grown)


def test_a_growing_run_that_is_killed_goes_on(grown: Path, tmp_path: Path) -> None:
    """From step 8, across the second growth, which had been seen already."""
    child = Child(GROWING, tmp_path / "run", strike=Strike(signal.SIGKILL, step=11)).wait()
    assert child.exitcode == -signal.SIGKILL
    assert last_step(tmp_path / "run") == 8
    assert_same(finished(GROWING, tmp_path / "run"), grown)


def test_the_result_is_of_the_whole_model(tmp_path: Path) -> None:
    """Though the smaller one, before the last growth, did better."""
    config = tiny_text(plan="2x1", stacking=StackingConfig(block=1, grow_at=(11,)))
    train(config, tmp_path, CPU)
    scores = {entry["step"]: entry["validation_loss"] for entry in metrics(tmp_path) if "loss" not in entry}
    assert scores[8] < scores[12]
    found = result(tmp_path)
    assert found["best_step"] == 12
    assert found["flops"] == replace(config.model, vocab_size=300).flops(12)


def test_a_task_can_grow(tmp_path: Path) -> None:
    model = replace(TINY.model, plan=LoopPlan.parse("3x1"))
    config = tiny(model=model, stacking=StackingConfig(block=1, grow_at=(7, 9)))
    train(config, tmp_path / "unbroken", CPU)
    assert_same(finished(config, stopped(config, tmp_path / "run", 9)), tmp_path / "unbroken")
    assert len(Run.load(tmp_path / "run").load_model().loop.layers) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"regularizer": RegularizerConfig(block=2)}, "stacking.block=2: allowed is 0 with a regularizer"),
        ({"loop_counts": LoopCounts(1, 2)}, "stacking.block=2: allowed is 0 with loop_counts"),
        (
            {"stacking": StackingConfig(2, (4,))},
            "stacking.grow_at=(4,): allowed is what grows into the model's plan 6x1, not into 4x1",
        ),
        (
            {"stacking": StackingConfig(2, (4, 12))},
            "stacking.grow_at=(4, 12): allowed is steps before the last, steps=12",
        ),
        (
            {"regularizer": RegularizerConfig(block=4), "stacking": StackingConfig()},
            "regularizer.block=4: allowed is 1 | 2 | 3, to divide the model's 6 distinct layers",
        ),
    ],
)
def test_ways_of_training_that_exclude_each_other(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        replace(GROWING, **changes)
    assert str(error.value).startswith(message)


# Numbers of loops other than the plan's

COUNTS = LoopCounts(1, 4)
UPWARDS = LoopCounts(1, 3, "growing", until=6)


def looped_text(**changes: Any) -> TrainConfig:
    return tiny_text(plan="1x1+1x3", **changes)


def looped_task(**changes: Any) -> TrainConfig:
    return tiny(model=replace(TINY.model, plan=LoopPlan.parse("1x3")), **changes)


def text_learner(config: TrainConfig) -> Learner:
    return learner(config)


def task_learner(config: TrainConfig) -> Learner:
    config = config.resolved()
    return TaskLearner(config, build_model(config, torch.device("cpu")), 0, Session(), Ranks())


def text_rows(config: TrainConfig, step: int) -> tuple[Tensor, Tensor]:
    rows = rows_of_step(config, step)
    return rows[:, :-1], rows[:, 1:]


def task_rows(config: TrainConfig, step: int) -> tuple[Tensor, Tensor]:
    batch = task_of(config).sample(range(4 * step, 4 * step + 4), config.seed, "train")
    return batch.tokens, batch.targets


@pytest.mark.parametrize(
    ("config", "build", "rows"),
    [(looped_text(), text_learner, text_rows), (looped_task(), task_learner, task_rows)],
    ids=["text", "task"],
)
def test_every_step_has_its_number_of_loops(
    config: TrainConfig, build: Callable[..., Learner], rows: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    for seed, counts in ((0, COUNTS), (1, COUNTS), (0, UPWARDS)):
        config = replace(config, loop_counts=counts, seed=seed, optim=replace(config.optim, lr=0.1, warmup_steps=0))
        one = build(config)
        wanted = [counts.count_at(number, seed) for number in range(8)]
        found = []
        for number in range(8):
            tokens, targets = rows(config, number)
            with torch.no_grad():
                by_loops = {
                    loops: F.cross_entropy(one.model(tokens, loops=loops).flatten(0, 1), targets.flatten()).item()
                    for loops in range(1, 5)
                }
            one.train_step()
            loss = one.report().loss
            found.append(min(by_loops, key=lambda loops: abs(by_loops[loops] - loss)))
            assert loss == pytest.approx(by_loops[found[-1]], rel=1e-5)
        assert found == wanted
        assert len(set(wanted)) > 2


@pytest.mark.slow
@pytest.mark.parametrize("build", [looped_text, looped_task], ids=["text", "task"])
@pytest.mark.parametrize(
    "counts", [LoopCounts(1, 5, "lognormal_poisson", center=2.0), UPWARDS], ids=["random", "growing"]
)
def test_a_run_with_other_loops_goes_on(build: Callable[..., TrainConfig], counts: LoopCounts, tmp_path: Path) -> None:
    config = build(loop_counts=counts)
    train(config, tmp_path / "unbroken", CPU)
    assert_same(finished(config, stopped(config, tmp_path / "run", 4)), tmp_path / "unbroken")


@pytest.mark.parametrize("counts", [LoopCounts(), COUNTS, UPWARDS], ids=["plan's", "random", "growing"])
def test_operations_are_those_of_the_loops_that_ran(counts: LoopCounts) -> None:
    config = looped_text(loop_counts=counts)
    one = learner(config)
    for _ in range(8):
        one.train_step()
    for steps in (8, 3):
        ran = [counts.count_at(step, config.seed) if counts.active else 3 for step in range(8 - steps, 8)]
        plans = [config.model.plan.with_loops(loops) for loops in ran]
        each = sum(replace(one.config.model, plan=plan).flops(config.model.max_len) for plan in plans)
        assert one.throughput(steps, 2.0)["tflops"] == pytest.approx(3 * config.batch_size * each / 2e12)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (
            LoopCounts(1, 2, "growing", until=6),
            "high=2: allowed is 3 with distribution=growing, as the model's plan 1x(1,3) has it",
        ),
        (LoopCounts(1, 3, "growing", until=24), "until=24: allowed is less than steps=24"),
    ],
)
def test_growth_into_another_model_and_growth_after_the_end(counts: LoopCounts, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        looped_text(loop_counts=counts, steps=24)
    assert str(error.value) == f"loop_counts.{message}"


def test_random_loops_of_a_plan_that_does_not_tell_which() -> None:
    with pytest.raises(InputError, match=r"^plan: 1x\(2,2\) does not tell which of its 2 blocks to loop 4 times"):
        tiny_text(plan="1x(2,2)", loop_counts=COUNTS)
    assert tiny_text(plan="1x(2*,2)", loop_counts=COUNTS)


# Presets

LANGUAGE_MODELS = [name for name, preset in presets.PRESETS.items() if isinstance(preset().source, Text)]
PLANS = ["24x1", "12x1", "12x2", "8x3", "6x4", "4x6", "4x(1,4,1)"]
PLANS += [plan for loops in (1, 2, 3, 6, 9, 12) for plan in (f"4x{loops}", f"{4 * loops}x1")]


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_preset_has_the_parameters_it_says(name: str) -> None:
    preset = presets.PRESETS[name]
    model = preset().model
    told = re.findall(r"([\d.]+)([MB])(?: parameters| in the layers)", (preset.__doc__ or "").splitlines()[0])
    assert len(told) >= (name != "lm-cpu")
    in_layers = replace(model, vocab_size=0).parameters()
    for (number, unit), parameters in zip(told, (model.parameters(), in_layers), strict=False):
        digits = len(number.partition(".")[2])
        assert float(number) == round(parameters / {"M": 1e6, "B": 1e9}[unit], digits)


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
@pytest.mark.parametrize("plan", PLANS)
def test_a_preset_takes_every_plan(name: str, plan: str) -> None:
    config = presets.PRESETS[name]()
    config = replace(config, model=replace(config.model, plan=LoopPlan.parse(plan)))
    config = replace(config, model=replace(config.model, vocab_size=config.model.vocab_size or 2048))
    assert codec.from_json(codec.to_json(config)) == config
    with torch.device("meta"):
        model = LoopedTransformer(config.model)
    assert sum(weight.numel() for weight in model.parameters()) == config.model.parameters()


def test_the_papers_model_is_as_the_paper_has_it() -> None:
    config = presets.lm_1b()
    model = config.model
    shape = (str(model.plan), model.d_model, model.d_ff, model.n_heads, model.width_of_head, model.max_len)
    assert shape == ("24x1", 2048, 5120, 32, 64, 1280)
    assert (config.batch_size, config.optim.lr, config.steps, config.optim.name) == (512, 0.01, 400_000, "adafactor")
    assert math.isclose(model.parameters(), 1.5e9, rel_tol=0.1)


# On a GPU

GPU_SIZED = tiny_text(
    plan="2x2", model=replace(tiny_text().model, d_model=64, n_heads=2, d_ff=128, max_len=16), batch_size=8
)


@pytest.mark.gpu
@needs_a_gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "muon"])
def test_a_captured_graph_does_what_the_steps_would(optimizer: str, compiled: bool) -> None:
    config = replace(GPU_SIZED, optim=with_optimizer(GPU_SIZED.optim, optimizer), loop_counts=LoopCounts(2, 3))
    captured, plain = (learner(config, device="cuda", compiled=compiled) for _ in range(2))
    plain.stream = None
    assert losses(captured) == pytest.approx(losses(plain), rel=1e-4)
    assert captured.graphs
    assert not plain.graphs


@pytest.mark.gpu
@needs_a_gpu
@pytest.mark.parametrize("options", [{"micro_batch": 3}, {"recompute": True}])
def test_micro_batches_and_recomputing_change_nothing_on_a_gpu(options: dict[str, Any]) -> None:
    whole, other = learner(GPU_SIZED, device="cuda"), learner(GPU_SIZED, device="cuda", **options)
    assert losses(other) == pytest.approx(losses(whole), rel=1e-2)
    assert not other.graphs


@pytest.mark.gpu
@needs_a_gpu
@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_compiled_it_computes_the_same(optimizer: str) -> None:
    """But for the rounding of bfloat16. Not on the CPU, where compiling takes most of a minute."""
    config = replace(GPU_SIZED, optim=with_optimizer(GPU_SIZED.optim, optimizer))
    config = replace(config, regularizer=RegularizerConfig(block=1, weight=1.0))
    plain, compiled = (losses(learner(config, device="cuda", compiled=flag)) for flag in (False, True))
    assert compiled == pytest.approx(plain, rel=2e-2)
