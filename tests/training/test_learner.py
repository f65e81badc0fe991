"""One update: which examples it sees, what its gradient is, and what it tells; compiled and captured, the same."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.errors import ConfigError
from loopt.runs import AdafactorConfig, TrainConfig
from loopt.runs.optimizers import with_optimizer
from loopt.tasks import IGNORE, IGSM, Addition, Batch, PHop, Task
from loopt.training import Session
from loopt.training.learner import NonFiniteError
from loopt.training.optim import build_optimizers, learning_rate
from loopt.training.parallel import Ranks
from loopt.training.task_learner import TaskLearner, backward, shares
from loopt.training.trainer import build_model
from loopt.training.update import update
from tiny_runs import TINY, task_of, tiny, with_source

SUMS = replace(TINY, source=Addition(operands=(1, 2, 4), digits=2), batch_size=8, seed=3).resolved()
CPU = torch.device("cpu")
on_a_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def learner(
    config: TrainConfig,
    device: torch.device = CPU,
    steps_done: int = 0,
    compiled: bool = False,
    captured: bool = False,
) -> TaskLearner:
    config = config.resolved()
    session = Session(compile="on" if compiled else "off")
    one = TaskLearner(config, build_model(config, device), steps_done, session, Ranks())
    if not captured:
        one.stream = None
    return one


def losses(one: TaskLearner, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        one.train_step()
        found.append(one.report().loss)
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
    task = task_of(SUMS)
    batches = [part.sample(range(count), 3, "train") for part, count in zip(task.mixture, (3, 3, 2), strict=True)]
    whole = padded(task, batches)
    expected = build_model(SUMS, CPU)
    wanted = F.cross_entropy(expected(whole.tokens)[whole.targets != IGNORE], whole.targets[whole.targets != IGNORE])
    wanted.backward()

    model = build_model(SUMS, CPU)
    loss = backward(model, batches)
    optimizers = build_optimizers(SUMS.optim, model)
    norm, finite = update(model.parameters(), optimizers, loss, torch.tensor(0.0), clip_norm=math.inf)
    assert finite
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    assert norm.item() == pytest.approx(gradient(expected).norm().item(), rel=1e-5)
    torch.testing.assert_close(gradient(model), gradient(expected), rtol=1e-4, atol=1e-7)

    means = [F.cross_entropy(expected(b.tokens).flatten(0, 1), b.targets.flatten()).item() for b in batches]
    assert abs(sum(means) / 3 - wanted.item()) > 1e-3  # the two are not the same thing here


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_answers_get_their_share_of_the_loss(weight: float) -> None:
    config = replace(TINY, source=PHop(p=(1, 2), n=8, supervision="every", answer_weight=weight)).resolved()
    batch = task_of(config).sample(range(config.batch_size), config.seed, "train")
    with torch.no_grad():
        logits = build_model(config, CPU)(batch.tokens).flatten(0, 1)
    everywhere, at_answers = (
        F.cross_entropy(logits, labels.flatten()).item() for labels in (batch.targets, batch.answers)
    )
    assert abs(everywhere - at_answers) > 1e-3
    (loss,) = losses(learner(config), 1)
    assert loss == pytest.approx((1 - weight) * everywhere + weight * at_answers, rel=1e-5)


@pytest.mark.parametrize("batch_size", [3, 4, 8])
@pytest.mark.parametrize("train_examples", [None, 1, 11])
@pytest.mark.parametrize("done", [0, 5])
def test_each_step_has_the_next_examples_of_every_part(batch_size: int, train_examples: int | None, done: int) -> None:
    """Seen from the losses, against batches drawn by index through the task."""
    config = with_source(replace(SUMS, batch_size=batch_size, steps=20), train_examples=train_examples)
    one = learner(config, steps_done=done)
    for step in range(done, done + 4):
        batches = []
        for part, count in zip(task_of(config).mixture, shares(batch_size, 3), strict=True):
            size = max(1, train_examples // 3) if train_examples else 10**9
            rows = [index % size for index in range(step * count, (step + 1) * count)]
            batches.append(part.sample(torch.tensor(rows, dtype=torch.int64), config.seed, "train"))
        whole = padded(task_of(config), batches)
        with torch.no_grad():
            logits = one.model(whole.tokens)
        one.train_step()
        expected = F.cross_entropy(logits.flatten(0, 1), whole.targets.flatten())
        assert one.report().loss == pytest.approx(expected.item(), rel=1e-5)


def test_a_batch_has_room_for_every_part() -> None:
    with pytest.raises(
        ConfigError, match="batch_size=2: allowed is 3 or more, one example for each task of the mixture"
    ):
        replace(SUMS, batch_size=2)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "muon"])
def test_the_report_has_the_learning_rate_of_its_step(optimizer: str) -> None:
    config = tiny(optimizer, steps=12)
    one = learner(config, steps_done=2)
    for step in range(2, 12):
        one.train_step()
        wanted = learning_rate(step, 12, config.optim.lr, config.optim.warmup_steps)
        assert one.report().lr == pytest.approx(wanted, rel=1e-6)
        for optimizer_ in one.optimizers:
            for group in optimizer_.param_groups:
                assert float(group["lr"]) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "muon"])
@pytest.mark.parametrize("later", [0, 1, 5])
def test_the_first_failure_is_told_however_late_one_looks(optimizer: str, later: int) -> None:
    one = learner(tiny(optimizer, model=replace(TINY.model, norm_placement="none")))
    losses(one, 3)
    weight = one.model.token_embedding.weight
    with torch.no_grad():
        kept = weight.clone()
        weight.fill_(math.inf)
    one.train_step()  # the fourth
    with torch.no_grad():
        weight.copy_(kept)  # what comes next would be finite
    before = {name: tensor.clone() for name, tensor in one.model.state_dict().items()}
    for _ in range(later):
        one.train_step()
    for _ in range(2):  # asked again, it says so again
        with pytest.raises(NonFiniteError) as error:
            one.report()
        assert error.value.step == 4
        assert str(error.value) == "loss nan, gradient norm nan; the update was not applied"
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name  # and nothing moved after it


GPU_SIZED = replace(
    TINY,
    source=PHop(p=(2,), n=40),
    model=ModelConfig(LoopPlan.parse("1x2"), d_model=32, n_heads=2, d_ff=64),
    optim=AdafactorConfig(lr=3e-3, warmup_steps=4),
    batch_size=16,
)


@pytest.mark.parametrize("compiled", [pytest.param(flag, marks=on_a_gpu) for flag in (False, True)])
@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "muon"])
@pytest.mark.parametrize("task", [PHop(p=(2,), n=40), Addition(operands=(1, 2, 4), digits=2)], ids=["phop", "sums"])
def test_a_captured_graph_does_what_the_steps_would(task: Task, optimizer: str, compiled: bool) -> None:
    config = replace(GPU_SIZED, source=task, optim=with_optimizer(GPU_SIZED.optim, optimizer))
    device = torch.device("cuda")
    eager, captured = (learner(config, device, compiled=compiled, captured=flag) for flag in (False, True))
    assert losses(captured, 10) == pytest.approx(losses(eager, 10), rel=1e-6)
    assert captured.graphs
    for name, weight in captured.model.state_dict().items():
        torch.testing.assert_close(weight, eager.model.state_dict()[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("task", [pytest.param(task, marks=on_a_gpu) for task in (GPU_SIZED.source, SUMS.source)])
def test_compiled_it_computes_the_same(task: Task) -> None:
    """But for the rounding of bfloat16. Not on the CPU, where compiling takes most of a minute."""
    config, device = replace(GPU_SIZED, source=task), torch.device("cuda")
    plain, compiled = (losses(learner(config, device, compiled=flag), 5) for flag in (False, True))
    assert compiled == pytest.approx(plain, rel=1e-2)


@pytest.mark.parametrize("optimizer", [pytest.param(name, marks=on_a_gpu) for name in ("adamw", "adafactor", "muon")])
def test_a_captured_graph_tells_the_first_failure(optimizer: str) -> None:
    config = replace(GPU_SIZED, optim=with_optimizer(GPU_SIZED.optim, optimizer))
    one = learner(config, torch.device("cuda"), captured=True)
    losses(one, 6)
    with torch.no_grad():
        one.model.token_embedding.weight.fill_(math.inf)
    for _ in range(3):
        one.train_step()
    with pytest.raises(NonFiniteError) as error:
        one.report()
    assert error.value.step == 7


@pytest.mark.parametrize("task", [pytest.param(task, marks=on_a_gpu) for task in (IGSM(), PHop(p=(16,), n=256))])
def test_training_on_a_gpu_repeats_to_the_bit(task: Task) -> None:
    """With thousands of tokens, whose embedding's gradient would else add up in another order every time."""
    config, device = replace(GPU_SIZED, source=task, batch_size=64, steps=40), torch.device("cuda")
    one, other = (learner(config, device, compiled=True, captured=True) for _ in range(2))
    assert losses(one, 20) == losses(other, 20)
    for name, weight in one.model.state_dict().items():
        assert torch.equal(weight, other.model.state_dict()[name]), name
