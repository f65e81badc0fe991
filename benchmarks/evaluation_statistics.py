"""The table "On the real sets" of docs/evaluation.md, in its Markdown.

    python benchmarks/evaluation_statistics.py --data-dir evals --tokenizer tokenizer.json
    python benchmarks/evaluation_statistics.py --data-dir evals --tokenizer tokenizer.json --suite drop --limit 200

For each task: how many questions are scored, what a model scores that looks up the first gold answer, and one that says
nothing; then the tokens of prompts with that answer, and the share that is longer than the context, with all shots and
without any. No model is needed. The whole suite takes some minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from loopt.evaluation.catalogue import SUITE, EvalTask, select
from loopt.evaluation.exchange import Prediction, Request
from loopt.evaluation.rendering import render
from loopt.evaluation.scores import TaskScore, score

CONTEXT = 1280
MEASURED = 2000
"""Prompts of a task that are tokenized: the first ones, which are from all over a set."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json to count tokens with")
    parser.add_argument("--suite", nargs="+", default=[SUITE], help="paper, groups or tasks")
    parser.add_argument("--limit", type=int, help="questions of each task")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(options.tokenizer)
    print(f"| task | questions | looks up | says nothing | tokens | longest | over {CONTEXT} | without shots |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for task in select(options.suite):
        requests = render(task, options.data_dir, options.limit)
        print(row(task, requests, tokenizer), flush=True)


def row(task: EvalTask, requests: Sequence[Request], tokenizer: Tokenizer) -> str:
    """Returns the line of the table for a task."""
    known, nothing = said(requests, lambda request: request.golds[0]), said(requests, lambda request: "")
    measured = requests[:MEASURED]
    ends = [f"{request.question} {request.golds[0]}" for request in measured]
    whole = lengths(tokenizer, ["".join(request.shots) + end for request, end in zip(measured, ends, strict=True)])
    cells = [
        f"`{task.name}`",
        f"{len(requests):,}",
        shown(known),
        shown(nothing),
        f"{sum(whole) / len(whole):.0f}",
        f"{max(whole):,}",
        share_over(whole),
        share_over(lengths(tokenizer, ends)),
    ]
    return f"| {' | '.join(cells)} |"


def said(requests: Sequence[Request], say: Callable[[Request], str]) -> TaskScore:
    """Returns what a model scores that says so; likelihoods are not looked at."""
    return score(requests, [Prediction(one.task, one.id, say(one), 0.0, 1, 0) for one in requests])


def shown(found: TaskScore) -> str:
    assert found.score
    return f"{found.score.value:.2f}"


def lengths(tokenizer: Tokenizer, texts: list[str]) -> list[int]:
    """Returns the number of tokens of each text."""
    return [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)]


def share_over(counts: Sequence[int]) -> str:
    return f"{sum(count > CONTEXT for count in counts) / len(counts):.2%}"


if __name__ == "__main__":
    main()
