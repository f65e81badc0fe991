"""Records of the hub become the rows of our layout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from loopt.errors import InputError
from loopt.evaluation.catalogue import TASKS
from loopt.evaluation.data_sets import DATA_SETS
from loopt.evaluation.hub import MAPPINGS, POOL
from loopt.evaluation.rendering import render

NO_DATE = {"day": "", "month": "", "year": ""}
RECORDS: dict[str, dict[str, Any]] = {
    "triviaqa": {
        "question": "Who?",
        "question_id": "tc_1",
        "answer": {"value": "Ada", "aliases": ["A. Vint", "Ada"], "normalized_value": "ada"},
    },
    "nq_open": {"question": "who", "answer": ["Ada", "Vint"]},
    "webquestions": {"url": "u", "question": "who?", "answers": ["Ada"]},
    "squad_v2": {
        "id": "s",
        "title": "T",
        "context": "C.",
        "question": "Q?",
        "answers": {"text": [], "answer_start": []},
    },
    "tydiqa_goldp_en": {
        "id": "english-1",
        "title": "T",
        "context": "C.",
        "question": "Q?",
        "answers": {"text": ["Ada"], "answer_start": [0]},
    },
    "drop": {
        "section_id": "n",
        "query_id": "d",
        "passage": "P.",
        "question": "Q?",
        "answer": {"number": "", "date": NO_DATE, "spans": ["Ada", "Bero"], "worker_id": "", "hit_id": ""},
        "validated_answers": {
            "number": ["7", "", ""],
            "date": [NO_DATE, {"day": "3", "month": "May", "year": "1801"}, NO_DATE],
            "spans": [[], [], ["Ada", "Bero"]],
            "worker_id": ["", "", ""],
            "hit_id": ["", "", ""],
        },
    },
    "quac": {
        "dialogue_id": "q",
        "context": "A text. CANNOTANSWER",
        "questions": ["Who?", "When?"],
        "answers": {"texts": [["Ada"], ["CANNOTANSWER", "1801"]], "answer_starts": [[0], [0, 1]]},
    },
    "coqa": {
        "id": "c",
        "source": "cnn",
        "story": "S.",
        "questions": {"input_text": ["Who?"], "turn_id": [1]},
        "answers": {"input_text": ["Ada"], "turn_id": [1]},
        "additional_answers": {
            number: {"input_text": [answer]} for number, answer in zip("012", ["Vint", "Ada", "A"], strict=True)
        },
    },
    "asdiv": {"body": "B.", "question": "Q?", "solution_type": "Sum", "answer": "9 (pears)", "formula": "7+2=9"},
    "svamp": {"ID": "v", "Body": "B.", "Question": "Q?", "Equation": "( 1 + 1 )", "Answer": "2.0", "Type": "Addition"},
    **{
        f"mawps_{part}": {"input": "How many ?", "target": 4.5}
        for part in ("addsub", "multiarith", "singleeq", "singleop")
    },
}
OURS = {
    "triviaqa": {"id": "tc_1", "question": "Who?", "answers": ["Ada", "A. Vint"]},
    "nq_open": {"question": "who", "answers": ["Ada", "Vint"]},
    "webquestions": {"question": "who?", "answers": ["Ada"]},
    "squad_v2": {"id": "s", "context": "C.", "question": "Q?", "answers": []},
    "tydiqa_goldp_en": {"id": "english-1", "context": "C.", "question": "Q?", "answers": ["Ada"]},
    "drop": {"id": "d", "context": "P.", "question": "Q?", "answers": ["Ada and Bero", "7", "3 May 1801"]},
    "quac": {
        "id": "q",
        "context": "A text. ",
        "turns": [
            {"question": "Who?", "answers": ["Ada"]},
            {"question": "When?", "answers": ["CANNOTANSWER", "1801"]},
        ],
    },
    "coqa": {"id": "c", "context": "S.", "turns": [{"question": "Who?", "answers": ["Ada", "Vint", "Ada", "A"]}]},
    "asdiv": {"body": "B.", "question": "Q?", "answer": "9 (pears)"},
    "svamp": {"id": "v", "body": "B.", "question": "Q?", "answer": "2"},
    **{
        f"mawps_{part}": {"question": "How many ?", "answer": "4.5"}
        for part in ("addsub", "multiarith", "singleeq", "singleop")
    },
}


@pytest.mark.parametrize("folder", [data.folder for data in DATA_SETS])
def test_a_record_becomes_a_row(folder: str) -> None:
    assert MAPPINGS[folder](RECORDS[folder]) == OURS[folder]


def test_tydiqa_in_other_languages_is_left_out() -> None:
    assert MAPPINGS["tydiqa_goldp_en"]({**RECORDS["tydiqa_goldp_en"], "id": "finnish-1"}) is None


def hub(monkeypatch: pytest.MonkeyPatch, records: dict[str, Iterator[dict[str, Any]]]) -> list[tuple[Any, ...]]:
    """Puts something in the place of ``datasets`` that has the given splits, and returns what is asked of it."""
    asked = []

    def load_dataset(name: str, config: str | None, *, split: str, streaming: bool, **others: Any) -> Any:
        asked.append((name, config, split, others))
        assert streaming
        return records[split]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return asked


def test_shots_are_drawn_from_the_start_of_the_training_split(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def training() -> Iterator[dict[str, Any]]:
        for number in range(10 * POOL):
            read.append(number)
            yield {"question": f"shot {number}", "answer": ["A"]}

    validation = iter([{"question": f"question {number}", "answer": ["A"]} for number in range(3)])
    asked = hub(monkeypatch, {"train": training(), "validation": validation})
    requests = render(TASKS["nq_open"], None, None)
    assert {request.id for request in requests} == {"nq_open-0", "nq_open-1", "nq_open-2"}
    assert all("Question: shot" in shot for request in requests for shot in request.shots)
    assert len(read) == POOL
    assert {split for _, _, split, _ in asked} == {"train", "validation"}


def test_a_set_cut_into_train_and_test_is_scored_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def part(first: int, count: int) -> Iterator[dict[str, Any]]:
        for number in range(first, first + count):
            yield {**RECORDS["svamp"], "ID": f"v{number}", "Body": f"Body {number}."}

    hub(monkeypatch, {"train": part(0, 70), "test": part(70, 30)})
    assert len(render(TASKS["svamp"], None, None)) == 100 - 16


def test_a_hub_that_fails_is_one_line_that_says_what_works_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, {})
    with pytest.raises(
        InputError, match=r"data set ChilleD/SVAMP on the hub: KeyError: .*--data-dir, with svamp/eval"
    ) as caught:
        render(TASKS["svamp"], None, None)
    assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="needs datasets; pip install"):
        render(TASKS["svamp"], None, None)


def test_records_with_other_fields_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, {"train": iter([{"text": "?"}]), "test": iter([])})
    with pytest.raises(
        InputError, match=r"ChilleD/SVAMP on the hub, train, row 1: not the fields it is known with: KeyError"
    ):
        render(TASKS["svamp"], None, None)
