"""Words that go by the loops of a step: how long they are, what a step then runs, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopt import LoopPlan
from loopt.errors import ConfigError, InputError
from loopt.reproduce.catalogue import EXPERIMENTS
from loopt.reproduce.experiment import jobs_of
from loopt.runs import TrainConfig
from loopt.runs.loop_counts import LoopCounts
from loopt.tasks import GroupComposition, HopPerLoop
from loopt.text.source import Text
from loopt.training import Session
from loopt.training.parallel import Ranks
from loopt.training.task_learner import TaskLearner, backward
from loopt.training.text_learner import TextLearner
from loopt.training.trainer import build_model
from tiny_runs import TINY

WORDS = GroupComposition(group="S3", n=8, supervision="every", loops_for_n=4)
GROWING = LoopCounts(low=1, high=4, distribution="growing", until=6)
RUN = replace(TINY, source=WORDS, model=replace(TINY.model, plan=LoopPlan.parse("1x4")), batch_size=8)
BOTH = replace(RUN, loop_counts=GROWING).resolved()
WORDS_ALONE = replace(RUN, loop_counts=replace(GROWING, problems_only=True)).resolved()


@given(st.integers(1, 200), st.integers(1, 12), st.integers(1, 16))
def test_with_each_loop_fewer_words_are_half_as_long(n: int, full: int, loops: int) -> None:
    task = GroupComposition(group="Z3", n=n, loops_for_n=full)
    found, longer = task.for_loops(loops).length, task.for_loops(loops + 1).length
    assert longer == n if loops >= full - 1 else found == -(-longer // 2)
    assert found == n or loops < full
    assert GroupComposition(group="Z3", n=n).for_loops(loops).length == n


@pytest.mark.parametrize(("config", "all_loops"), [(BOTH, False), (WORDS_ALONE, True)], ids=["both", "words alone"])
def test_a_step_trains_on_words_as_long_as_its_loops_say(config: TrainConfig, all_loops: bool) -> None:
    model, reference = (build_model(config, torch.device("cpu")) for _ in range(2))
    learner = TaskLearner(config, model, 0, Session(compile="off"), Ranks())
    lengths = []
    for step in range(8):
        count = config.loop_counts.count_at(step, config.seed)
        words = GroupComposition(group="S3", n=2 ** (count - 1), supervision="every")
        lengths.append(words.n)
        batch = words.sample(range(8 * step, 8 * (step + 1)), config.seed, "train")
        reference.load_state_dict(model.state_dict())
        expected = backward(reference, [batch], loops=4 if all_loops else count)
        learner.train_step()
        assert learner.report().loss == pytest.approx(float(expected), rel=1e-6)
    assert lengths == [1, 1, 2, 2, 4, 4, 8, 8]


def test_a_model_is_measured_on_whole_words_all_along() -> None:
    assert {name: task.length for name, task in WORDS.tests.items()} == {"group": 8}
    tested = replace(WORDS, test_lengths=(2, 8))
    assert {name: task.length for name, task in tested.tests.items()} == {"n=2": 2, "n=8": 8}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            replace(WORDS_ALONE, source=replace(WORDS, loops_for_n=None)),
            "loop_counts.problems_only=True: allowed is off for a task whose problems do not go by the loops",
        ),
        (
            replace(
                TINY,
                source=HopPerLoop(p=(2,), n=12),
                loop_counts=LoopCounts(low=1, high=2, problems_only=True),
            ).resolved(),
            "loop_counts.problems_only=True: allowed is off for hop_per_loop, whose problems ask for a number of loops",
        ),
        (
            replace(WORDS_ALONE, loop_counts=LoopCounts()),
            "loop_counts.high=0: allowed is 4 or more, with which group trains on the problems it is measured on",
        ),
        (
            replace(WORDS_ALONE, source=replace(WORDS, loops_for_n=9)),
            "loop_counts.high=4: allowed is 9 or more, with which group trains on the problems it is measured on",
        ),
    ],
)
def test_problems_that_do_not_go_by_the_loops_are_refused(config: TrainConfig, told: str) -> None:
    with pytest.raises(InputError) as error:
        TaskLearner.check(config, Session(), Ranks())
    assert str(error.value) == told


def test_text_has_no_problems_to_go_by_the_loops() -> None:
    config = replace(WORDS_ALONE, source=Text())
    with pytest.raises(InputError, match=r"^loop_counts\.problems_only=True: allowed is off for text$"):
        TextLearner.check(config, Session(), Ranks())


def test_bad_settings() -> None:
    with pytest.raises(InputError, match=r"^task group: loops_for_n=0; allowed are integers"):
        GroupComposition(loops_for_n=0)
    with pytest.raises(ConfigError, match=r"^loop_counts\.problems_only=True: allowed is off, since low=0"):
        LoopCounts(problems_only=True)


@pytest.mark.parametrize("scale", ["cpu", "short"])
def test_rows_of_the_experiment_differ_in_what_grows_alone(scale: str) -> None:
    configs = {job.row.recipe: job.config for job in jobs_of(EXPERIMENTS["group-growing"], scale, 1)}  # type: ignore[arg-type]
    fixed = configs["fixed"]
    assert isinstance(fixed.source, GroupComposition)
    headings = EXPERIMENTS["group-growing"].headings("cpu")
    assert scale != "cpu" or all(heading.startswith(f"{fixed.source.group}, n=") for heading in headings)
    for recipe, config in configs.items():
        assert isinstance(config.source, GroupComposition)
        assert replace(config, source=fixed.source, loop_counts=LoopCounts()) == fixed
        assert (config.source.loops_for_n is not None) == (recipe in ("growing words", "both"))
        runs_all = not config.loop_counts.active or config.loop_counts.problems_only
        assert runs_all == (recipe in ("fixed", "growing words"))
        assert config.source.tests.keys() == fixed.source.tests.keys()
