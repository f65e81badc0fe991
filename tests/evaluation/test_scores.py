"""Two figures for every task, with their standard errors, and the means of groups and of all real tasks."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from loopt.errors import InputError
from loopt.evaluation.catalogue import TASKS
from loopt.evaluation.exchange import Prediction, Request
from loopt.evaluation.scores import Figure, SuiteScores, TaskScore, bits_per_byte, mean, score, suite_scores


def request(name: str, gold: str = "2", task: str = "svamp") -> Request:
    return Request(task, name, ("shot\n\n",) * 5, "Question: ?\nAnswer:", (gold,), ("\n",), 8)


def prediction(name: str, text: str | None, dropped: int = 0) -> Prediction:
    return Prediction("svamp", name, text, 2 * math.log(2), 2, dropped)


def near(found: Figure | None, value: float, error: float) -> bool:
    return found is not None and (found.value, found.standard_error) == pytest.approx((value, error))


def test_a_score_is_a_percentage_with_its_standard_error() -> None:
    names = ["a", "b", "c", "d"]
    said = [prediction("d", "2"), prediction("a", " 2\t", 1), prediction("b", "3"), prediction("c", "2 pears", 3)]
    found = score([request(name) for name in names], said)
    assert found.metric == "number match"
    assert near(found.score, 75, 100 * float(np.std([1, 0, 1, 1], ddof=1)) / 2)
    assert found.bits_per_byte == Figure(1.0, 0.0)
    assert (found.examples, found.shots, found.shots_dropped, found.prompts_cut) == (4, 5, 4, 2)


def test_without_texts_only_bits_per_byte_are_scored() -> None:
    found = score([request("a")], [prediction("a", None)])
    assert found.score is None
    assert found.bits_per_byte == Figure(1.0, None)


def test_bits_per_byte_is_total_bits_over_total_bytes() -> None:
    assert bits_per_byte([3 * math.log(2), 1 * math.log(2)], [1, 3]).value == pytest.approx(1)


def test_the_error_of_bits_per_byte_is_what_repeated_sampling_shows() -> None:
    random = np.random.default_rng(0)
    sizes = random.integers(1, 30, (4000, 200))
    nats = sizes * random.gamma(2.0, 0.5, sizes.shape)
    ratios = nats.sum(1) / sizes.sum(1) / math.log(2)
    errors = [
        bits_per_byte(list(n), list(map(int, s))).standard_error for n, s in zip(nats[:50], sizes[:50], strict=True)
    ]
    assert np.mean(np.array(errors, dtype=float)) == pytest.approx(ratios.std(), rel=0.05)


def test_the_error_of_a_mean_is_that_of_its_sample() -> None:
    assert mean([1.0, 3.0]) == Figure(2.0, 1.0)
    assert mean([1.0]) == Figure(1.0, None)


def task_score(name: str, value: float) -> TaskScore:
    return TaskScore(name, "F1", Figure(value, 2.0), Figure(value / 100, 0.2), {}, 10, 5, 0, 0, 0)


def test_all_tasks_is_the_mean_of_the_15_real_ones_each_once() -> None:
    values = {name: float(number) for number, name in enumerate(TASKS)}
    suite = suite_scores([task_score(name, value) for name, value in reversed(values.items())])
    assert list(suite.tasks) == list(TASKS)
    assert suite.all_tasks is not None
    assert suite.all_tasks.tasks == 15
    assert near(suite.all_tasks.score, 7, 2 / math.sqrt(15))
    assert {group: found.tasks for group, found in suite.groups.items()} == {
        "closed_book": 4,
        "open_book": 5,
        "math_word_problems": 6,
        "primitives": 4,
    }
    assert near(suite.groups["primitives"].score, 16.5, 1)
    assert near(suite.groups["closed_book"].bits_per_byte, 0.015, 0.1)


def test_means_are_of_complete_groups_only() -> None:
    suite = suite_scores([task_score(name, 1.0) for name in TASKS if name != "quac"])
    assert suite.all_tasks is None
    assert list(suite.groups) == ["closed_book", "math_word_problems", "primitives"]


def test_a_group_without_texts_has_bits_per_byte_alone() -> None:
    scores = [task_score(name, 1.0) for name, task in TASKS.items() if task.group == "primitives"]
    suite = suite_scores([replace(scores[0], score=None), *scores[1:]])
    assert suite.groups["primitives"].score is None
    assert suite.groups["primitives"].bits_per_byte.value == pytest.approx(0.01)


def test_scores_survive_json() -> None:
    scores = [task_score(name, 1.0) for name in TASKS]
    scores[0] = replace(scores[0], score=None, others={"exact match": Figure(3.0, None)})
    suite = suite_scores(scores)
    assert SuiteScores.from_json(json.loads(json.dumps(suite.to_json()))) == suite


@pytest.mark.parametrize("data", [{}, [], {"tasks": {"svamp": {}}}, {"tasks": {"svamp": 3}}, {"tasks": 3}])
def test_what_are_no_scores_is_refused(data: object) -> None:
    with pytest.raises(InputError):
        SuiteScores.from_json(data)  # type: ignore[arg-type]


def test_predictions_have_to_match_the_requests() -> None:
    requests = [request("a"), request("b")]
    with pytest.raises(InputError, match="svamp: no prediction for 'b' and 0 more"):
        score(requests, [prediction("a", "2")])
    with pytest.raises(InputError, match="one each"):
        score(requests, [prediction("a", "2"), prediction("a", "2"), prediction("b", "2")])
    with pytest.raises(InputError, match="one each"):
        score(requests, [prediction(name, "2") for name in "abc"])
    with pytest.raises(InputError, match="those of one task"):
        score([request("a"), request("b", task="asdiv")], [])
    with pytest.raises(InputError, match="twice"):
        suite_scores([task_score("svamp", 1.0)] * 2)
    with pytest.raises(InputError, match="no task 'sums'"):
        suite_scores([task_score("sums", 1.0)])
