"""The suite as tasks of lm-evaluation-harness: there are all 19, and they give the scores that ours give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from predictions import garbler, predict

import loopt.evaluation
from loopt.evaluation.catalogue import TASKS, select
from loopt.evaluation.exchange import Request
from loopt.evaluation.mini_sets import mini_data_dir
from loopt.evaluation.rendering import render
from loopt.evaluation.scores import score

pytest.importorskip("lm_eval", reason="lm-eval is not installed")
FOLDER = Path(loopt.evaluation.__file__).parent / "harness_tasks"


def manager() -> Any:
    from lm_eval.tasks import TaskManager

    metadata = {"data_dir": str(mini_data_dir()), "limit": 6}
    return TaskManager(include_path=str(FOLDER), include_defaults=False, metadata=metadata)


def talker(say: Callable[[str], str]) -> Any:
    """A model of the harness that says what ``say`` makes of a prompt; every byte of a gold costs one nat."""
    from lm_eval.api.model import LM

    class Talker(LM):  # type: ignore[misc]
        def generate_until(self, requests: list[Any], **_: Any) -> list[str]:
            return [say(request.args[0]) for request in requests]

        def loglikelihood(self, requests: list[Any], **_: Any) -> list[tuple[float, bool]]:
            return [(-float(len(request.args[1].encode())), False) for request in requests]

        def loglikelihood_rolling(self, requests: list[Any], **_: Any) -> list[float]:
            raise NotImplementedError

    return Talker()


@pytest.mark.slow
def test_tasks_of_every_form_give_the_scores_of_the_suite() -> None:
    from lm_eval import simple_evaluate

    words = ["triviaqa", "open_book", "asdiv", "assignment_math_0"]
    requests = {task.name: render(task, mini_data_dir(), 6) for task in select(words)}
    said: dict[str, str] = {}
    for asked in requests.values():
        garble = garbler(asked, 1)
        said |= {"".join(request.shots) + request.question: garble(request) for request in asked}

    def say(request: Request) -> str:
        return said["".join(request.shots) + request.question]

    found = simple_evaluate(
        talker(said.__getitem__),
        tasks=[f"loopt_{word}" for word in words],
        task_manager=manager(),
        log_samples=False,
        bootstrap_iters=100,
    )["results"]
    assert set(found) == {f"loopt_{name}" for name in requests}
    for name, asked in requests.items():
        ours = score(asked, predict(asked, say))
        theirs = found[f"loopt_{name}"]
        assert ours.score
        assert 100 * theirs[f"{in_harness(ours.metric)},none"] == pytest.approx(ours.score.value)
        error = 100 * theirs[f"{in_harness(ours.metric)}_stderr,none"]
        assert error == pytest.approx(ours.score.standard_error)
        assert theirs["bits_per_byte,none"] == pytest.approx(ours.bits_per_byte.value)
        for other, figure in ours.others.items():
            assert 100 * theirs[f"{in_harness(other)},none"] == pytest.approx(figure.value)


def in_harness(metric: str) -> str:
    return {"F1": "f1", "leave-one-out F1": "leave_one_out_f1"}.get(metric, metric.replace(" ", "_"))


def test_there_is_a_file_for_each_task() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(TASKS)
    for path in FOLDER.glob("*.yaml"):
        assert path.read_text() == (
            f"task: loopt_{path.stem}\ntag:\n  - loopt_paper\n  - loopt_{TASKS[path.stem].group}\n"
            "class: !function suite_task.SuiteTask\n"
        )
