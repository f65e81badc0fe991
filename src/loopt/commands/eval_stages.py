"""loopt eval render, loopt eval predict RUN, loopt eval score: the stages of evaluation, one at a time.

Predicting alone needs neither the data nor what reads it: torch and the tokenizer are enough.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.progress import track

from loopt.commands.eval_model import check_choice, open_models
from loopt.commands.eval_suite import require_limit, table_of
from loopt.commands.parsing import parse_options
from loopt.devices import DeviceName
from loopt.errors import InputError
from loopt.evaluation.exchange import Prediction, Request
from loopt.evaluation.lines import by_task, read_lines, write_lines
from loopt.evaluation.measure import render_suite
from loopt.evaluation.predict import predict_with
from loopt.evaluation.scores import score, suite_scores
from loopt.files import explain_os_errors, write_atomically
from loopt.report.screen import printable, screen


@dataclass(frozen=True)
class RenderOptions:
    """Write the prompts and right answers of tasks to a file, a line of JSON for each. For example:

    loopt eval render --suite paper --data-dir data/evals --limit 200 --out requests.jsonl
    """

    suite: tuple[str, ...]
    """paper for all 19 tasks, or groups, or tasks."""
    out: Path
    """The file to write."""
    data_dir: Path | None = None
    """Folder of the data sets; the Hugging Face hub unless given."""
    limit: int | None = None
    """The most examples of each task; all unless given."""


@dataclass(frozen=True)
class PredictOptions:
    """Have a model answer rendered requests, on a machine that needs neither network nor data. For example:

    loopt eval predict runs/lm-75m --requests requests.jsonl --out predictions.jsonl
    """

    requests: Path
    """What loopt eval render wrote."""
    out: Path
    """The file to write, a line of JSON for each prediction."""
    run: tyro.conf.Positional[Path | None] = None
    """Directory of a language model's run."""
    hf: str | None = None
    """In place of RUN: a Hugging Face model, by name or directory."""
    loops: int | None = None
    """How often to run the loopable block; as often as in training unless given."""
    likelihood_only: bool = False
    """Measure the likelihood of right answers alone, and generate nothing."""
    checkpoint: str = "best"
    """best, last, or a step."""
    device: DeviceName = "auto"
    """Where to run the model; on cuda it runs in bfloat16."""
    trust_remote_code: bool = False
    """Run the code that a Hugging Face model brings along."""


@dataclass(frozen=True)
class ScoreOptions:
    """Score predictions, and print what loopt eval RUN --suite prints. For example:

    loopt eval score --requests requests.jsonl --predictions predictions.jsonl --out scores.json
    """

    requests: Path
    """What loopt eval render wrote."""
    predictions: Path
    """What loopt eval predict wrote."""
    out: Path | None = None
    """A file to write the scores to, as JSON."""


def render_requests(arguments: list[str]) -> int:
    options = parse_options(RenderOptions, arguments, "loopt eval render")
    require_limit(options.limit)
    requests = render_suite(options.suite, options.data_dir, options.limit)
    write_lines(options.out, requests)
    print(f"{printable(options.out)}: {len(requests):,} requests of {len(by_task(requests))} tasks", file=sys.stderr)
    return 0


def predict_requests(arguments: list[str]) -> int:
    options = parse_options(PredictOptions, arguments, "loopt eval predict")
    loops = () if options.loops is None else (options.loops,)
    check_choice(options.run, options.hf, loops)
    requests = read_lines(Request, options.requests)
    chosen = (options.run, options.hf, loops, options.checkpoint, options.device, options.trust_remote_code)
    ((_, measured),) = open_models(*chosen)
    made = predict_with(measured.model, requests, generate=not options.likelihood_only)
    console = screen(stderr=True)
    shown = track(made, "predicting", len(requests), console=console, disable=not console.is_terminal)
    predictions = list(shown)
    write_lines(options.out, predictions)
    cut = sum(prediction.tokens_cut > 0 for prediction in predictions)
    dropped = sum(prediction.shots_dropped for prediction in predictions)
    print(
        f"{printable(options.out)}: {len(predictions):,} predictions; {dropped:,} shots dropped, {cut:,} questions cut",
        file=sys.stderr,
    )
    return 0


def score_predictions(arguments: list[str]) -> int:
    options = parse_options(ScoreOptions, arguments, "loopt eval score")
    requests = by_task(read_lines(Request, options.requests))
    predictions = by_task(read_lines(Prediction, options.predictions))
    for task in predictions.keys() - requests.keys():
        raise InputError(f"{options.predictions}: predictions for {task[:40]}, of which there are no requests")
    scores = suite_scores([score(some, predictions.get(task, [])) for task, some in requests.items()])
    if options.out is not None:
        with explain_os_errors(f"write {options.out}"):
            options.out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(options.out, json.dumps(scores.to_json(), indent=1) + "\n")
    screen().print(table_of(scores, printable(options.predictions)))
    return 0


STAGES = {"render": render_requests, "predict": predict_requests, "score": score_predictions}
