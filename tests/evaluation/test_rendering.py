"""Prompts from local files: every question once, shots from elsewhere, and nothing that is not in the files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from predictions import look_up, predict, say_nothing

from loopt.errors import InputError
from loopt.evaluation.catalogue import GROUPS, TASKS, select
from loopt.evaluation.data import RESERVED, reserve
from loopt.evaluation.dialogs import settle_cannot_answer
from loopt.evaluation.mini_sets import mini_data_dir
from loopt.evaluation.questions import Question
from loopt.evaluation.rendering import render
from loopt.evaluation.scores import score, suite_scores
from loopt.text.splits import split_of
from loopt.text.task_documents import HELD_OUT

REAL = [name for name, task in TASKS.items() if task.data]


def write(folder: Path, rows: list[dict[str, Any]], name: str = "eval.jsonl") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def problems(count: int) -> list[dict[str, Any]]:
    return [
        {"id": f"p{number}", "question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(count)
    ]


def test_who_looks_answers_up_scores_100_and_who_says_nothing_what_nothing_is_worth() -> None:
    known, nothing = [], []
    for task in TASKS.values():
        requests = render(task, mini_data_dir(), 24)
        known.append(score(requests, predict(requests, look_up)))
        nothing.append(score(requests, predict(requests, say_nothing)))
    assert [found.score.value for found in known if found.score] == [100] * 19
    worth = {found.task: found.score.value for found in nothing if found.score}
    assert worth.pop("squad_v2") == 50  # the share without an answer
    assert set(worth.values()) == {0}
    suite = suite_scores(known)
    assert suite.all_tasks
    assert suite.all_tasks.score
    assert suite.all_tasks.score.value == 100


@pytest.mark.parametrize("name", REAL)
def test_shots_are_solved_questions_of_other_topics(name: str) -> None:
    task = TASKS[name]
    requests = render(task, mini_data_dir(), None)
    assert len({request.id for request in requests}) == len(requests) >= 24
    for request in requests:
        assert len(request.shots) == len(set(request.shots)) == task.shots
        assert request.question.endswith("\nAnswer:")
        for shot in request.shots:
            assert shot.endswith("\n\n")
            assert shot.count("\n\n") == 1
            assert shot.partition("\nAnswer:")[0] != request.question.partition("\nAnswer:")[0]


def test_a_shorter_list_is_the_start_of_a_longer_one_and_from_all_over_the_set() -> None:
    everything = render(TASKS["svamp"], mini_data_dir(), None)
    assert render(TASKS["svamp"], mini_data_dir(), 7) == everything[:7]
    assert [request.id for request in everything] != sorted(request.id for request in everything)


def test_a_seed_draws_other_shots_for_the_same_questions() -> None:
    one, other = (render(TASKS["svamp"], mini_data_dir(), None, seed) for seed in (0, 1))
    assert [request.question for request in one] == [request.question for request in other]
    assert all(request.shots != others.shots for request, others in zip(one, other, strict=True))
    assert len({request.shots for request in one}) > 20  # each question has its own


def test_shots_of_squad_show_a_question_with_an_answer_and_one_without() -> None:
    orders = set()
    for request in render(TASKS["squad_v2"], mini_data_dir(), None):
        orders.add(tuple(shot.endswith("Answer: unanswerable\n\n") for shot in request.shots))
    assert orders == {(True, False), (False, True)}


def test_earlier_turns_carry_gold_answers(tmp_path: Path) -> None:
    turns = [{"question": f"Turn {number}?", "answers": [f"gold {number}", "other"]} for number in range(3)]
    write(tmp_path / "coqa", [{"id": "d", "context": "A\n\nstory.", "turns": turns}])
    requests = {request.id: request for request in render(TASKS["coqa"], tmp_path, None)}
    assert requests["d#2"].question == (
        "Passage: A story.\nQuestion: Turn 0?\nAnswer: gold 0\nQuestion: Turn 1?\nAnswer: gold 1\n"
        "Question: Turn 2?\nAnswer:"
    )
    assert requests["d#2"].golds == ("gold 2", "other")


def test_half_of_the_references_decide_that_quac_cannot_answer() -> None:
    assert settle_cannot_answer(("in 1801", "CANNOTANSWER")) == ("CANNOTANSWER",)
    assert settle_cannot_answer(("CANNOTANSWER", "in 1801", "1801")) == ("in 1801", "1801")


def test_without_a_pool_shots_come_from_a_part_that_is_not_scored(tmp_path: Path) -> None:
    write(tmp_path / "svamp", problems(100))
    requests = render(TASKS["svamp"], tmp_path, None)
    scored = {request.question for request in requests}
    assert len(scored) == 100 - RESERVED
    shown = {shot.rpartition(" ")[0] for request in requests for shot in request.shots}
    assert len(shown) == RESERVED
    assert not shown & scored


def test_a_shot_of_the_pool_that_is_scored_as_well_is_not_shown(tmp_path: Path) -> None:
    write(tmp_path / "svamp", problems(10))
    write(tmp_path / "svamp", problems(16), "fewshot_pool.jsonl")
    requests = render(TASKS["svamp"], tmp_path, None)
    shown = {shot.rpartition(" ")[0] for request in requests for shot in request.shots}
    assert len(requests) == 10
    assert not shown & {request.question for request in requests}


def test_all_questions_about_a_reserved_passage_are_reserved() -> None:
    questions = [Question(str(number), f"passage {number % 40}", "?", ("gold",)) for number in range(200)]
    scored, pool = reserve(questions)
    assert len(pool) == RESERVED * 5
    assert not {one.topic for one in scored} & {one.topic for one in pool}
    assert reserve(questions[::-1])[1] == pool[::-1]  # whatever the order of the file


def test_compressed_files_are_read(tmp_path: Path) -> None:
    plain = mini_data_dir() / "nq_open"
    for name in ("eval.jsonl", "fewshot_pool.jsonl"):
        (tmp_path / "nq_open").mkdir(exist_ok=True)
        (tmp_path / "nq_open" / f"{name}.gz").write_bytes(gzip.compress((plain / name).read_bytes()))
    assert render(TASKS["nq_open"], tmp_path, None) == render(TASKS["nq_open"], mini_data_dir(), None)


@pytest.mark.parametrize("name", [name for name in TASKS if name not in REAL])
def test_primitives_are_documents_that_no_training_corpus_holds(name: str) -> None:
    requests = render(TASKS[name], None, 20)
    assert len({request.question for request in requests}) == 20
    for request in requests:
        document = "".join(request.shots) + request.question + " " + request.golds[0]
        assert split_of(document.encode(), HELD_OUT, HELD_OUT) == "test"
        assert len(request.shots) == 5
        assert request.question.endswith("=?" if "math" in name else ")  #")
        assert request.golds[0] in request.question
    assert render(TASKS[name], None, 5) == requests[:5]
    assert not {request.question for request in render(TASKS[name], None, 20, seed=1)} & {
        request.question for request in requests
    }


def test_a_missing_file_is_named_with_its_layout_and_where_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        render(TASKS["drop"], tmp_path, None)
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(tmp_path / "drop" / "eval.jsonl"), '"context"', "allenai.org/data/drop", "EleutherAI/drop"):
        assert part in message


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"id": "1", "question": "Q?"}', r"eval.jsonl, line 1: no field 'answers'; it has id, question"),
        (
            '{"id": "1", "question": "Q?", "answers": []}',
            r"line 1: answers='\[\]'; allowed is a list of one text or more",
        ),
        ('{"id": "1", "question": "Q?", "answers": "A"}', r"line 1: answers='A'; allowed is a list of texts"),
        ('{"id": "1", "question": " ", "answers": ["A"]}', r"line 1: question=' '; allowed is a text"),
        ('{"id": 1, "question": "Q?", "answers": ["A"]}', r"line 1: id='1'; allowed is a text"),
        ("[1]", r"line 1: allowed is an object"),
        ("{", r"line 1.*no JSON"),
        ("", r"data set nq_open: there is no question in it"),
        ('{"id": "1", "question": "Q?", "answers": ["A"]}\n' * 2, r"id='1' is there twice"),
        ('{"id": "1", "question": "Q?", "answers": ["A"]}', r"nq_open takes 5 shots and there are 0 questions"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "nq_open").mkdir()
    (tmp_path / "nq_open" / "eval.jsonl").write_text(line)
    with pytest.raises(InputError, match=says) as caught:
        render(TASKS["nq_open"], tmp_path, None)
    assert "\n" not in str(caught.value)


def test_limits_and_seeds_are_checked() -> None:
    with pytest.raises(InputError, match="limit=0: allowed is 1 or more"):
        render(TASKS["svamp"], mini_data_dir(), 0)
    with pytest.raises(InputError, match="seed=-1: allowed is 0 or more"):
        render(TASKS["assignment_math_0"], None, 1, seed=-1)


def test_a_suite_is_named_by_words() -> None:
    assert len(select(["paper"])) == 19
    assert [len(select([group])) for group in GROUPS] == [4, 5, 6, 4]
    assert [task.name for task in select(["quac", "drop", "quac"])] == ["drop", "quac"]
    with pytest.raises(InputError, match="no task or group 'squad'; allowed are paper, closed_book"):
        select(["squad"])
    with pytest.raises(InputError, match="nothing named"):
        select([])


def test_mini_sets_are_small_and_say_that_they_are_invented() -> None:
    files = [path for path in mini_data_dir().rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 120_000
    assert "invented" in (mini_data_dir() / "README.md").read_text()
    assert len(files) == 1 + 2 * 14
