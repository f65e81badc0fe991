"""All three stages, task by task: what was measured already, with the same model and settings, is not measured again.

FOLDER/
  tasks/TASK.json    the scores of a task, with the settings they were measured with
  tasks/TASK.jsonl   the predictions behind them
  NAME.json          the scores of all tasks of a suite, with the means
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loopt.errors import InputError
from loopt.evaluation.catalogue import select
from loopt.evaluation.exchange import Prediction, Request
from loopt.evaluation.language_model import LanguageModel
from loopt.evaluation.lines import by_task, fingerprint, write_lines
from loopt.evaluation.predict import predict_with
from loopt.evaluation.rendering import render
from loopt.evaluation.scores import SuiteScores, TaskScore, score, suite_scores
from loopt.files import check_signature, explain_os_errors, read_json, signed, write_atomically

Report = Callable[[str, int, int, TaskScore | None], None]
"""Is told, by a task's name, how many of its requests are done, how many there are, and, at its end, the score."""


def no_report(task: str, done: int, total: int, found: TaskScore | None) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Measured:
    """A model, and what tells it from any other."""

    model: LanguageModel
    identity: Mapping[str, Any]
    """Plain values, which the results of the model carry."""


def render_suite(words: Sequence[str], data_dir: Path | None = None, limit: int | None = None) -> list[Request]:
    """Returns the requests of all tasks that ``words`` name, at most ``limit`` of each."""
    return [request for task in select(words) for request in render(task, data_dir, limit)]


def measure_suite(
    measured: Measured,
    requests: Sequence[Request],
    folder: Path,
    name: str,
    *,
    generate: bool = True,
    report: Report = no_report,
) -> SuiteScores:
    """Returns the scores of a model on the tasks that the requests are of, and leaves them in ``folder`` under a
    name."""
    tasks = by_task(requests).values()
    found = suite_scores([_measure_task(measured, some, folder / "tasks", generate, report) for some in tasks])
    settings = {**measured.identity, "generated": generate, "requests": fingerprint(requests)}
    _write(folder / f"{name}.json", {"settings": settings, **found.to_json()})
    return found


def _measure_task(
    measured: Measured, requests: Sequence[Request], folder: Path, generate: bool, report: Report
) -> TaskScore:
    task, total = requests[0].task, len(requests)
    path = folder / f"{task}.json"
    settings = {**measured.identity, "generated": generate, "requests": fingerprint(requests)}
    found = _finished(path, settings)
    if found is None:
        predictions: list[Prediction] = []
        report(task, 0, total, None)
        for prediction in predict_with(measured.model, requests, generate=generate):
            predictions.append(prediction)
            report(task, len(predictions), total, None)
        found = score(requests, predictions)
        write_lines(path.with_suffix(".jsonl"), predictions)
        _write(path, {"settings": settings, "score": asdict(found)})
    report(task, total, total, found)
    return found


def _finished(path: Path, settings: Mapping[str, Any]) -> TaskScore | None:
    """Returns the score of a task that was measured with these settings; None where it was not, or is damaged."""
    if path.is_file():
        with contextlib.suppress(InputError):
            data = check_signature(read_json(path), path)
            if data.get("settings") == settings:
                return TaskScore.from_json(data["score"])
    return None


def _write(path: Path, data: dict[str, Any]) -> None:
    with explain_os_errors(f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(signed(data), indent=1) + "\n")
