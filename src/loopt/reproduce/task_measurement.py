"""What is measured of a model that learned a task: accuracy, also by the number of loops and by difficulty."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from loopt.reproduce.measurement import Measurement, is_curve, is_number
from loopt.runs import Run
from loopt.scoring import score_each
from loopt.tasks import Task

if TYPE_CHECKING:
    from loopt.reproduce.experiment import Job

MOST_EXAMPLES = 8192  # for each number of loops, and for each difficulty


class TaskMeasurement(Measurement):
    """Accuracy of the best checkpoint, which training itself measured, and further tests."""

    curve = "validation_accuracy"

    def measure(self, job: Job, run: Run, device: torch.device) -> Generator[str, None, dict[str, Any]]:
        yield from ()  # it takes seconds, and is not interrupted
        return _further_tests(run, job.experiment.loops_to_test, device)

    def values(self, found: Mapping[str, Any]) -> dict[str, float]:
        return {test: 100 * share for test, share in found["result"]["accuracies"].items()}

    def shown(self, result: Mapping[str, Any]) -> str:
        return f"accuracy {result['accuracy']:.1%}"

    def wrong_measured(self, found: Mapping[str, Any], tests: Collection[str]) -> Iterator[str]:
        result = found["result"]
        if not is_number(result.get("accuracy"), 0, 1):
            yield "accuracy"
        if not (_are_shares(result.get("accuracies")) and result["accuracies"].keys() >= set(tests)):
            yield "accuracies"  # one of an older config may have others
        if not is_curve(found.get("curve"), 1):
            yield "curve"
        if not _are_shares(found.get("by_difficulty", {})):
            yield "by_difficulty"
        if not _are_shares_by_loops(found.get("by_loops", {}), tests):
            yield "by_loops"


def _are_shares(value: Any) -> bool:
    return isinstance(value, dict) and all(is_number(share, 0, 1) for share in value.values())


def _are_shares_by_loops(value: Any, tests: Collection[str]) -> bool:
    return isinstance(value, dict) and all(
        loops.isdecimal() and len(loops) < 19 and _are_shares(shares) and shares.keys() >= set(tests)
        for loops, shares in value.items()
    )


def _further_tests(run: Run, loops: Collection[int], device: torch.device) -> dict[str, Any]:
    """Returns the accuracy of the best checkpoint by number of loops and test, and by difficulty of its task."""
    task, further = run.config.source, dict[str, Any]()
    assert isinstance(task, Task)
    if not (loops or task.difficulties):
        return {}
    model = run.load_model("best").to(device)
    examples = min(run.config.test_examples, MOST_EXAMPLES)
    if loops:
        scores = {n: score_each(model, task.tests, "test", examples, n) for n in loops}
        further["by_loops"] = {
            str(n): {name: one.accuracy for name, one in of_tests.items()} for n, of_tests in scores.items()
        }
    if task.difficulties:
        graded = score_each(model, task.difficulties, "test", examples)
        further["by_difficulty"] = {name: score.accuracy for name, score in graded.items()}
    return further
