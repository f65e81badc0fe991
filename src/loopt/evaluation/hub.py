"""Data sets of the Hugging Face hub, streamed, with their fields mapped to those of the local files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from loopt.errors import InputError
from loopt.evaluation.data_sets import DataSet
from loopt.evaluation.questions import CANNOT_ANSWER
from loopt.evaluation.rows import Row

POOL = 200
"""How many rows of a training split shots are drawn from."""

Fields = dict[str, Any]


def hub_rows(data: DataSet, shots: bool) -> Iterator[Row] | None:
    """Returns the rows of a data set on the hub; for shots, None where it has no split for them."""
    if not shots:
        return _rows(data, data.hub.splits)
    if data.hub.shot_split is None:
        return None
    return islice(_rows(data, (data.hub.shot_split,)), POOL)


def _rows(data: DataSet, splits: tuple[str, ...]) -> Iterator[Row]:
    to_ours = MAPPINGS[data.folder]
    number = 0
    for split in splits:
        for record in _stream(data, split):
            where = f"data set {data.hub.dataset} on the hub, {split}, row {number + 1}"
            try:
                fields = to_ours(record)
            except (KeyError, TypeError, IndexError, AttributeError) as problem:
                raise InputError(f"{where}: not the fields it is known with: {problem!r}") from None
            if fields is not None:
                yield Row({"id": f"{data.folder}-{number}"} | fields, where)
            number += 1


def _stream(data: DataSet, split: str) -> Iterator[Fields]:
    """Yields the records of a split, and turns whatever ``datasets`` raises into an InputError of one line."""
    hub = data.hub
    try:
        import datasets

        yield from datasets.load_dataset(
            hub.dataset, hub.config, data_files=hub.data_files, revision=hub.revision, split=split, streaming=True
        )
    except ImportError:
        raise InputError(
            f"data set {hub.dataset}: reading from the hub needs datasets; pip install 'loopt[data]', "
            "or give local files with --data-dir"
        ) from None
    except (InputError, GeneratorExit):
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0][:200]
        raise InputError(
            f"data set {hub.dataset} on the hub: {type(error).__name__}: {first}; "
            f"local files work without it: --data-dir, with {data.folder}/eval.jsonl from {data.origin}"
        ) from error


def _triviaqa(record: Fields) -> Fields:
    answer = record["answer"]
    answers = list(dict.fromkeys([answer["value"], *answer["aliases"]]))
    return {"id": record["question_id"], "question": record["question"], "answers": answers}


def _nq_open(record: Fields) -> Fields:
    return {"question": record["question"], "answers": list(record["answer"])}


def _webquestions(record: Fields) -> Fields:
    return {"question": record["question"], "answers": list(record["answers"])}


def _squad(record: Fields) -> Fields:
    answers = list(record["answers"]["text"])
    return {"answers": answers} | {name: record[name] for name in ("id", "context", "question")}


def _tydiqa(record: Fields) -> Fields | None:
    return _squad(record) if record["id"].startswith("english") else None


def _drop(record: Fields) -> Fields:
    validated = record["validated_answers"]
    others = zip(validated["number"], validated["date"], validated["spans"], strict=True)
    first = record["answer"]
    written = [
        _drop_answer(*answer) for answer in [(first["number"], first["date"], first["spans"]), *others] if any(answer)
    ]
    answers = list(dict.fromkeys(answer for answer in written if answer))
    return {
        "id": record["query_id"],
        "context": record["passage"],
        "question": record["question"],
        "answers": answers,
    }


def _drop_answer(number: str, date: Fields, spans: list[str]) -> str:
    """Returns an answer as text: a number, spans joined with ' and ', or a date as day, month, year."""
    if str(number) != "":
        return str(number)
    if spans:
        return " and ".join(spans)
    return " ".join(part for part in (date["day"], date["month"], date["year"]) if part)


def _quac(record: Fields) -> Fields:
    turns = [
        {"question": question, "answers": list(texts)}
        for question, texts in zip(record["questions"], record["answers"]["texts"], strict=True)
    ]
    passage = record["context"].strip().removesuffix(CANNOT_ANSWER)
    return {"id": record["dialogue_id"], "context": passage, "turns": turns}


def _coqa(record: Fields) -> Fields:
    writers = [record["answers"], *(record["additional_answers"][number] for number in ("0", "1", "2"))]
    references = [writer["input_text"] for writer in writers if writer["input_text"]]  # training has one writer
    turns = [
        {"question": question, "answers": [answers[turn] for answers in references]}
        for turn, question in enumerate(record["questions"]["input_text"])
    ]
    return {"id": record["id"], "context": record["story"], "turns": turns}


def _asdiv(record: Fields) -> Fields:
    return {name: record[name] for name in ("body", "question", "answer")}


def _mawps(record: Fields) -> Fields:
    return {"question": record["input"], "answer": _number(record["target"])}


def _svamp(record: Fields) -> Fields:
    fields = {"id": record["ID"], "body": record["Body"], "question": record["Question"]}
    return fields | {"answer": _number(record["Answer"])}


def _number(value: float | str) -> str:
    """Returns a number as it is written in an answer: 5, not 5.0.

    >>> _number(5.0), _number("12.50"), _number("1,000")
    ('5', '12.5', '1000')
    """
    return f"{float(str(value).replace(',', '')):.12g}"


MAPPINGS: dict[str, Callable[[Fields], Fields | None]] = {
    "triviaqa": _triviaqa,
    "nq_open": _nq_open,
    "webquestions": _webquestions,
    "tydiqa_goldp_en": _tydiqa,
    "squad_v2": _squad,
    "drop": _drop,
    "quac": _quac,
    "coqa": _coqa,
    "asdiv": _asdiv,
    "mawps_addsub": _mawps,
    "mawps_multiarith": _mawps,
    "mawps_singleeq": _mawps,
    "mawps_singleop": _mawps,
    "svamp": _svamp,
}
"""From a record of each data set to the fields of our layout; None for a record that does not belong."""
