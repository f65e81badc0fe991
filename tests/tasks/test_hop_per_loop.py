"""A hop for each loop: what a step trains on, and what a model is tested on, goes by the number of loops."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest
import torch

from loopt import LoopedTransformer
from loopt.analysis.loops import task_points
from loopt.errors import InputError
from loopt.reproduce.catalogue import EXPERIMENTS
from loopt.reproduce.experiment import jobs_of
from loopt.runs import TrainConfig
from loopt.runs.loop_counts import LoopCounts
from loopt.scoring import exact_match
from loopt.tasks import HopPerLoop, PHop, hop_per_loop
from loopt.training import Session
from loopt.training.parallel import Ranks
from loopt.training.task_learner import TaskLearner, backward
from loopt.training.trainer import build_model
from tiny_runs import TINY, with_source

TASK = HopPerLoop(p=(2,), n=12, test_p=(1, 2, 4))
HOPS = replace(TINY, source=TASK, batch_size=8, loop_counts=LoopCounts(low=1, high=4)).resolved()


def test_docstring_examples() -> None:
    assert doctest.testmod(hop_per_loop).failed == 0


@pytest.mark.parametrize("loops", [1, 2, 4])
def test_its_problems_are_those_of_p_hop_with_as_many_hops_as_loops(loops: int) -> None:
    batch = TASK.for_loops(loops).sample(range(50), seed=3, split="train")
    p_hop = PHop(p=(loops,), n=12)
    answers = torch.tensor([p_hop.solve(tokens)[-1] for tokens in batch.tokens.tolist()])
    assert batch.answers[:, -1].equal(answers)
    assert TASK.vocabulary == p_hop.vocabulary  # no token says p


def test_a_step_trains_on_as_many_hops_as_it_runs_loops() -> None:
    model = build_model(HOPS, torch.device("cpu"))
    learner = TaskLearner(HOPS, model, 0, Session(compile="off"), Ranks())
    reference = build_model(HOPS, torch.device("cpu"))
    seen = set()
    for step in range(6):
        loops = HOPS.loop_counts.count_at(step, HOPS.seed)
        seen.add(loops)
        problems = PHop(p=(loops,), n=12, supervision="every")
        batch = TASK.for_loops(loops).sample(range(8 * step, 8 * (step + 1)), HOPS.seed, "train")
        labels = torch.tensor([problems.solve(tokens) for tokens in batch.tokens.tolist()])
        assert batch.targets.equal(labels)
        reference.load_state_dict(model.state_dict())
        expected = backward(reference, [batch], loops=loops)
        learner.train_step()
        assert learner.report().loss == pytest.approx(float(expected), rel=1e-6)
    assert len(seen) > 2


def test_each_test_runs_as_many_loops_as_it_has_hops_unless_told_otherwise() -> None:
    model: LoopedTransformer = build_model(HOPS, torch.device("cpu"))
    points = list(task_points(model, TASK.tests, [None], "test", 100))
    assert [(point.test, point.loops) for point in points] == [("p=1", 1), ("p=2", 2), ("p=4", 4)]
    for point in points:
        test = TASK.tests[point.test]
        assert point.loss == exact_match(model, test, "test", 100, loops=point.loops).loss
        assert exact_match(model, test, "test", 100).loss == point.loss
        assert exact_match(model, test, "test", 100, loops=3).loss != point.loss


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ({"p": (1, 2)}, "task hop_per_loop: p=(1, 2); allowed is one integer, the number of the plan's loops"),
        ({"p": (4,), "n": 8}, "task hop_per_loop: p=4 with n=8 needs n of at least 9"),
        ({"p": (2,), "n": 8, "test_p": (2, 5)}, "task hop_per_loop: p=5 with n=8 needs n of at least 11"),
        ({"test_p": (0,)}, "task hop_per_loop: test_p=0; allowed are integers, 1 to 1000000000"),
    ],
)
def test_bad_settings(task: dict[str, object], told: str) -> None:
    with pytest.raises(InputError) as error:
        HopPerLoop(**task)  # type: ignore[arg-type]
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (with_source(HOPS, p=(3,)), "model.plan=1x2: allowed for this hop_per_loop are plans with 3 lo"),
        (replace(HOPS, loop_counts=LoopCounts(low=1, high=6)), "task hop_per_loop: p=6 with n=12 needs n of at least"),
    ],
)
def test_loops_that_do_not_fit_are_refused_before_training(config: TrainConfig, told: str) -> None:
    with pytest.raises(InputError) as error:
        TaskLearner.check(config, Session(), Ranks())
    assert str(error.value).startswith(told)


def test_treatments_differ_in_what_their_name_says_alone() -> None:
    for scale in ("cpu", "short", "paper"):
        configs = {job.row.recipe: job.config for job in jobs_of(EXPERIMENTS["more-loops"], scale, 1)}
        plain = configs["random loops"]
        both = replace(plain.model, loop_norm="own", injection="added")
        assert configs["both"] == replace(plain, model=both)
        assert configs["fixed loops"] == replace(plain, loop_counts=LoopCounts())
        assert replace(configs["growing loops"], loop_counts=plain.loop_counts) == plain
        for config in configs.values():
            TaskLearner.check(config, Session(), Ranks())
