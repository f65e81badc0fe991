"""Points: what a run or a result file says of its model, and refusals of what is neither."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loopt.analysis.points import Point, parameters_by_loops, read_point, shared_metrics
from loopt.errors import InputError
from loopt.plan import LoopPlan
from loopt.runs import codec
from loopt.training import train
from tiny_runs import CPU, TINY

HOME = Path(__file__).parents[2]


def written(folder: Path, data: Any) -> Path:
    path = folder / "point.json"
    path.write_text(json.dumps(data))
    return path


def test_a_result_file_gives_metrics_errors_size_and_tokens(tmp_path: Path) -> None:
    config = TINY.resolved()
    metrics = {"perplexity": 12.5, "closed_book/bits_per_byte": 2, "triviaqa": None}
    data = {"plan": "1x2", "seed": 3, "metrics": metrics, "standard_errors": {"perplexity": 0.1}}
    point = read_point(written(tmp_path, data | {"config": codec.to_json(config)}))
    assert point.metrics == {"perplexity": 12.5, "closed_book/bits_per_byte": 2.0}
    assert point.standard_errors == {"perplexity": 0.1}
    assert (point.name, point.plan, point.seed) == ("point", LoopPlan.parse("1x2"), 3)
    assert point.parameters is not None
    assert sum(point.parameters.values()) == config.model.parameters()
    assert point.tokens == config.steps * config.batch_size * config.model.max_len
    assert point.loss == pytest.approx(math.log(12.5))


def test_a_task_has_its_accuracy_with_the_error_of_a_share() -> None:
    path = HOME / "results" / "phop" / "short" / "1x6-p16-seed0.json"
    result = json.loads(path.read_text())["result"]
    point = read_point(path)
    share = result["accuracy"]
    assert point.metrics == {"accuracy": share, "loss": result["loss"]}
    assert point.standard_errors["accuracy"] == pytest.approx(math.sqrt(share * (1 - share) / result["test_examples"]))


def test_scores_of_a_suite_are_metrics_by_task_and_group(tmp_path: Path) -> None:
    def scored(value: float | None) -> dict[str, Any]:
        figure = None if value is None else {"value": value, "standard_error": 0.5}
        return {"score": figure, "bits_per_byte": {"value": 2.0, "standard_error": None}}

    data = {"tasks": {"svamp": scored(7.0)}, "groups": {"primitives": scored(None)}, "all_tasks": None}
    point = read_point(written(tmp_path, data | {"settings": {"plan": "4x6", "step": 100}}))
    assert str(point.plan) == "4x6"
    assert point.metrics == {"svamp": 7.0, "svamp/bits_per_byte": 2.0, "primitives/bits_per_byte": 2.0}
    assert point.standard_errors == {"svamp": 0.5}


def test_a_finished_run_is_a_point(tmp_path: Path) -> None:
    outcome = train(replace(TINY, steps=6), tmp_path / "run", CPU)
    point = read_point(tmp_path / "run")
    assert point.metrics["accuracy"] == outcome.result["accuracy"]
    assert (point.name, str(point.plan)) == ("run", "1x2")


def test_a_layer_counts_by_its_loops() -> None:
    model = replace(TINY.resolved().model, plan=LoopPlan.parse("1x1+2x3"), loop_norm="own")
    plain = replace(model, plan=LoopPlan.parse("3x1"))
    layer = plain.parameters() - replace(model, plan=LoopPlan.parse("2x1")).parameters()
    assert parameters_by_loops(model) == {1: model.parameters() - 2 * layer, 3: 2 * layer}
    assert parameters_by_loops(plain) == {1: plain.parameters()}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ([], "no plan"),
        ({"metrics": {"a": 1}}, "no plan"),
        ({"plan": "4y6", "metrics": {"a": 1}}, "plan: plan '4y6'"),
        ({"plan": 4, "metrics": {"a": 1}}, "plan"),
        ({"settings": {"plan": "4x6"}, "groups": {}, "tasks": {"svamp": 1}}, "allowed is what loopt eval RUN --suite"),
        ({"settings": {}, "groups": {}, "tasks": {}, "all_tasks": None}, "no metrics"),
        ({"plan": "4x6"}, "no metrics"),
        ({"plan": "4x6", "metrics": {}}, "no metrics"),
        ({"plan": "4x6", "metrics": [1]}, "metrics: allowed is an object"),
        ({"plan": "4x6", "metrics": {"a": "high"}}, "metrics.a=high: allowed is a number"),
        ({"plan": "4x6", "metrics": {"a": True}}, "metrics.a=True"),
        ({"plan": "4x6", "metrics": {"a": 1}, "standard_errors": {"a": [1]}}, "standard_errors.a=[1]"),
        ({"plan": "4x6", "metrics": {"a": 1}, "seed": "one"}, "seed"),
        ({"plan": "4x6", "metrics": {"a": 1}, "config": {}}, "config: "),
    ],
)
def test_what_is_no_point_is_refused_by_its_field(data: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read_point(written(tmp_path, data))
    assert "point.json" in str(refused.value)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_metrics_are_those_that_all_have() -> None:
    plan = LoopPlan.parse("1x1")
    points = [Point("a", plan, {"x": 1.0, "y": 2.0, "z": 3.0}), Point("b", plan, {"z": 1.0, "y": 2.0})]
    assert shared_metrics(points, []) == ["y", "z"]
    assert shared_metrics(points, ["z"]) == ["z"]
    with pytest.raises(InputError, match=r"metrics=x: allowed is y \| z, which every file has"):
        shared_metrics(points, ["x"])
    with pytest.raises(InputError, match="none in common"):
        shared_metrics([*points, Point("c", plan, {"x": 1.0})], [])
