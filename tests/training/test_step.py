"""One update: which examples it sees, what its gradient is, and what it tells; compiled and captured, the same."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.errors import ConfigError
from loopt.runs import OptimConfig, TrainConfig
from loopt.tasks import IGNORE, Addition, Batch, PHop, Task
from loopt.training.optim import build_optimizers, learning_rate
from loopt.training.step import NonFiniteError, update
from loopt.training.task_work import TaskStep, backward, shares
from loopt.training.trainer import build_model
from tiny_runs import TINY, tiny

SUMS = replace(TINY, task=Addition(operands=(1, 2, 4), digits=2), batch_size=8, seed=3).resolved()
CPU = torch.device("cpu")
on_a_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def stepper(config: TrainConfig, device: torch.device = CPU, **options: Any) -> TaskStep:
    config = config.resolved()
    return TaskStep(config, build_model(config, device), **options)


def losses(update: TaskStep, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        update()
        found.append(update.report().loss)
    return found


def gradient(model: LoopedTransformer) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def padded(task: Task, rows: list[Batch]) -> Batch:
    """The batches as one, the shorter ones padded at their end, where nothing is asked."""

    def fill(name: str, value: int) -> torch.Tensor:
        tensors = [getattr(batch, name) for batch in rows]
        return torch.cat([F.pad(one, (0, task.length - one.shape[1]), value=value) for one in tensors])

    return Batch(fill("tokens", 0), fill("targets", IGNORE), fill("answers", IGNORE))


@given(st.integers(1, 5000), st.integers(1, 40))
def test_shares_are_equal_but_for_one(batch_size: int, parts: int) -> None:
    counts = shares(batch_size, parts)
    assert (len(counts), sum(counts)) == (parts, batch_size)
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


def test_the_gradient_of_a_mixture_is_that_of_the_padded_batch() -> None:
    """The mean over all supervised tokens, not the mean of the parts' means, which differ in length and number."""
    task = SUMS.task
    batches = [part.sample(range(count), 3, "train") for part, count in zip(task.parts, (3, 3, 2), strict=True)]
    whole = padded(task, batches)
    expected = build_model(SUMS, CPU)
    wanted = F.cross_entropy(expected(whole.tokens)[whole.targets != IGNORE], whole.targets[whole.targets != IGNORE])
    wanted.backward()

    model = build_model(SUMS, CPU)
    loss = backward(model, batches)
    optimizers = build_optimizers(model, SUMS.optim)
    norm, finite = update(model.parameters(), optimizers, loss, torch.tensor(0.0), clip_norm=math.inf)
    assert finite
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    assert norm.item() == pytest.approx(gradient(expected).norm().item(), rel=1e-5)
    torch.testing.assert_close(gradient(model), gradient(expected), rtol=1e-4, atol=1e-7)

    means = [F.cross_entropy(expected(b.tokens).flatten(0, 1), b.targets.flatten()).item() for b in batches]
    assert abs(sum(means) / 3 - wanted.item()) > 1e-3  # the two are not the same thing here


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_answers_get_their_share_of_the_loss(weight: float) -> None:
    config = replace(TINY, task=PHop(p=(1, 2), n=8, supervision="every"), answer_weight=weight).resolved()
    batch = config.task.sample(range(config.batch_size), config.seed, "train")
    with torch.no_grad():
        logits = build_model(config, CPU)(batch.tokens).flatten(0, 1)
    everywhere, at_answers = (
        F.cross_entropy(logits, labels.flatten()).item() for labels in (batch.targets, batch.answers)
    )
    assert abs(everywhere - at_answers) > 1e-3
    (loss,) = losses(stepper(config), 1)
    assert loss == pytest.approx((1 - weight) * everywhere + weight * at_answers, rel=1e-5)


@pytest.mark.parametrize("batch_size", [3, 4, 8])
@pytest.mark.parametrize("train_examples", [None, 1, 11])
@pytest.mark.parametrize("done", [0, 5])
def test_each_step_has_the_next_examples_of_every_part(batch_size: int, train_examples: int | None, done: int) -> None:
    """Seen from the losses, against batches drawn by index through the task."""
    config = replace(SUMS, batch_size=batch_size, train_examples=train_examples, steps=20)
    update = stepper(config, done=done)
    for step in range(done, done + 4):
        batches = []
        for part, count in zip(config.task.parts, shares(batch_size, 3), strict=True):
            size = max(1, train_examples // 3) if train_examples else 10**9
            rows = [index % size for index in range(step * count, (step + 1) * count)]
            batches.append(part.sample(torch.tensor(rows, dtype=torch.int64), config.seed, "train"))
        whole = padded(config.task, batches)
        with torch.no_grad():
            logits = update.model(whole.tokens)
        update()
        expected = F.cross_entropy(logits.flatten(0, 1), whole.targets.flatten())
        assert update.report().loss == pytest.approx(expected.item(), rel=1e-5)


def test_a_batch_has_room_for_every_part() -> None:
    with pytest.raises(ConfigError, match="batch_size=2: allowed is 3 or more, one for each of its parts"):
        replace(SUMS, batch_size=2)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "muon"])
def test_the_report_has_the_learning_rate_of_its_step(optimizer: str) -> None:
    config = tiny(optimizer, steps=12)
    update = stepper(config, done=2)
    for step in range(2, 12):
        update()
        wanted = learning_rate(step, 12, config.optim.lr, config.optim.warmup_steps)
        assert update.report().lr == pytest.approx(wanted, rel=1e-6)
        for optimizer_ in update.optimizers:
            for group in optimizer_.param_groups:
                assert float(group["lr"]) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "muon"])
@pytest.mark.parametrize("later", [0, 1, 5])
def test_the_first_failure_is_told_however_late_one_looks(optimizer: str, later: int) -> None:
    update = stepper(tiny(optimizer, model=replace(TINY.model, norm_placement="none")))
    losses(update, 3)
    weight = update.model.token_embedding.weight
    with torch.no_grad():
        kept = weight.clone()
        weight.fill_(math.inf)
    update()  # the fourth
    with torch.no_grad():
        weight.copy_(kept)  # what comes next would be finite
    before = {name: tensor.clone() for name, tensor in update.model.state_dict().items()}
    for _ in range(later):
        update()
    for _ in range(2):  # asked again, it says so again
        with pytest.raises(NonFiniteError) as error:
            update.report()
        assert error.value.step == 4
        assert str(error.value) == "loss nan, gradient norm nan; the update was not applied"
    for name, tensor in update.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name  # and nothing moved after it


GPU_SIZED = replace(
    TINY,
    task=PHop(p=(2,), n=40),
    model=ModelConfig(LoopPlan.parse("1x2"), d_model=32, n_heads=2, d_ff=64),
    optim=OptimConfig(lr=3e-3, warmup_steps=4),
    batch_size=16,
)


@pytest.mark.parametrize("compiled", [pytest.param(flag, marks=on_a_gpu) for flag in (False, True)])
@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "muon"])
@pytest.mark.parametrize("task", [PHop(p=(2,), n=40), Addition(operands=(1, 2, 4), digits=2)], ids=["phop", "sums"])
def test_a_captured_graph_does_what_the_steps_would(task: Task, optimizer: str, compiled: bool) -> None:
    config = replace(GPU_SIZED, task=task, optim=replace(GPU_SIZED.optim, name=optimizer))
    device = torch.device("cuda")
    eager, captured = (stepper(config, device, compiled=compiled, captured=flag) for flag in (False, True))
    assert losses(captured, 10) == pytest.approx(losses(eager, 10), rel=1e-6)
    assert captured.graphs
    for name, weight in captured.model.state_dict().items():
        torch.testing.assert_close(weight, eager.model.state_dict()[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("task", [pytest.param(task, marks=on_a_gpu) for task in (GPU_SIZED.task, SUMS.task)])
def test_compiled_it_computes_the_same(task: Task) -> None:
    """But for the rounding of bfloat16. Not on the CPU, where compiling takes most of a minute."""
    config, device = replace(GPU_SIZED, task=task), torch.device("cuda")
    plain, compiled = (losses(stepper(config, device, compiled=flag), 5) for flag in (False, True))
    assert compiled == pytest.approx(plain, rel=1e-2)


@pytest.mark.parametrize("optimizer", [pytest.param(name, marks=on_a_gpu) for name in ("adamw", "adafactor", "muon")])
def test_a_captured_graph_tells_the_first_failure(optimizer: str) -> None:
    config = replace(GPU_SIZED, optim=replace(GPU_SIZED.optim, name=optimizer))
    update = stepper(config, torch.device("cuda"), captured=True)
    losses(update, 6)
    with torch.no_grad():
        update.model.token_embedding.weight.fill_(math.inf)
    for _ in range(3):
        update()
    with pytest.raises(NonFiniteError) as error:
        update.report()
    assert error.value.step == 7
