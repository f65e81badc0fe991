"""Reads the questions of a data set, and those that shots come from: local files, or the Hugging Face hub.

A data set is a folder with ``eval.jsonl`` and, where there is a training split to take shots from,
``fewshot_pool.jsonl``; either may be compressed (``.jsonl.gz``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

from loopt.errors import InputError
from loopt.evaluation import closed_book, dialogs, math_word, open_book
from loopt.evaluation.catalogue import EvalTask
from loopt.evaluation.data_sets import LAYOUTS, DataSet
from loopt.evaluation.hub import hub_rows
from loopt.evaluation.questions import Question
from loopt.evaluation.rows import Row
from loopt.files import parse_json
from loopt.text.compressed import decompressed

RESERVED = 16
"""How many topics of a set without a training split are kept for shots."""


def load_questions(task: EvalTask, data: DataSet, data_dir: Path | None) -> tuple[list[Question], list[Question]]:
    """Returns the questions to score and those that shots come from; None for ``data_dir`` is the hub."""
    if data_dir is None:
        scored, pool = hub_rows(data, shots=False), hub_rows(data, shots=True) if task.shots else None
    else:
        scored, pool = _local_rows(data, data_dir, shots=False), _local_rows(data, data_dir, shots=True)
    assert scored is not None
    read = _reader(task, data)
    questions = [question for row in scored for question in read(row)]
    _check_ids(questions, data)
    if not task.shots:
        return questions, []
    if pool is None:
        return reserve(questions)
    shots = [read(row)[-1] for row in pool]  # of a dialog, its last turn shows all of it
    taken = {question.topic for question in questions}
    return questions, [shot for shot in shots if shot.topic not in taken]


def reserve(questions: list[Question]) -> tuple[list[Question], list[Question]]:
    """Splits questions into those to score and those for shots, so that the two share no topic.

    For shots are the topics with the smallest hashes: always the same ones, from all over the set.
    """
    topics = sorted({question.topic for question in questions}, key=lambda topic: sha256(topic.encode()).digest())
    kept = set(topics[: min(RESERVED, len(topics) // 2)])
    return [one for one in questions if one.topic not in kept], [one for one in questions if one.topic in kept]


def _reader(task: EvalTask, data: DataSet) -> Callable[[Row], list[Question]]:
    if data.form == "math_word":
        return math_word.questions
    if data.form == "dialog":
        return dialogs.questions
    if not task.context or data.form == "closed_book":
        return closed_book.questions
    return lambda row: open_book.questions(row, may_be_unanswerable=task.metric == "f1_no_answer")


def _check_ids(questions: list[Question], data: DataSet) -> None:
    if not questions:
        raise InputError(f"data set {data.folder}: there is no question in it; allowed are 1 or more")
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise InputError(f"data set {data.folder}: id={question.id[:40]!r} is there twice; allowed is once")
        seen.add(question.id)


def _local_rows(data: DataSet, data_dir: Path, shots: bool) -> Iterator[Row] | None:
    """Returns the rows of a local file; for shots, None where there is no such file."""
    name = "fewshot_pool" if shots else "eval"
    folder = data_dir / data.folder
    for path in (folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz"):
        if path.is_file():
            return _read_lines(path)
    if shots:
        return None
    raise InputError(
        f"no file {folder / 'eval.jsonl'} (or .jsonl.gz); its lines are {LAYOUTS[data.form]}; "
        f"it comes from {data.origin}; without --data-dir, {data.hub.dataset} is read from the hub"
    )


def _read_lines(path: Path) -> Iterator[Row]:
    try:
        with path.open("rb") as stored, decompressed(stored, path) as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                where = f"{path}, line {number}"
                fields = parse_json(line, where, InputError)
                if not isinstance(fields, dict):
                    raise InputError(f"{where}: allowed is an object in braces, with named fields")
                yield Row(fields, where)
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror or problem}") from None
