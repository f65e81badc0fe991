"""loopt eval --suite: measured once, stage by stage or at once, and never mixed up with other settings."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import is_refusal, run
from loopt.errors import InputError
from loopt.evaluation import measure
from loopt.evaluation.exchange import Prediction, Request
from loopt.evaluation.lines import by_task, read_lines, write_lines
from loopt.evaluation.mini_sets import mini_data_dir
from loopt.evaluation.predict import predict, predict_with
from loopt.evaluation.scores import SuiteScores
from loopt.files import check_signature, read_json, signed
from loopt.runs import Run
from tiny_language_runs import language_run

Captured = pytest.CaptureFixture[str]
MINI = ("--data-dir", str(mini_data_dir()), "--device", "cpu")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a copy of a trained run."""
    shutil.copytree(language_run(), tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks whose requests a model was asked to predict."""
    asked: list[str] = []
    whole = predict_with

    def counted(model: Any, requests: Any, **settings: Any) -> Iterator[Prediction]:
        asked.append(requests[0].task)
        return whole(model, requests, **settings)

    monkeypatch.setattr(measure, "predict_with", counted)
    return asked


def results(path: Path) -> dict[str, Any]:
    return check_signature(read_json(path), path)


def test_a_suite_is_measured_printed_and_stored(here: Path, capsys: Captured) -> None:
    assert run("eval", "run", "--suite", "primitives", "svamp", "--limit", "3", *MINI) == 0
    printed = capsys.readouterr().out
    for name in ("svamp", "assignment_math_0", "assignment_code_1", "Reasoning primitives", "2x2"):
        assert name in printed
    (file,) = here.glob("run/eval/*/primitives+svamp.json")
    assert file.parent.name.endswith("-loops-2-limit-3")
    scores = SuiteScores.from_json(results(file))
    assert set(scores.groups) == {"primitives"}
    assert scores.all_tasks is None
    found = Run.load(here / "run")
    step = results(file)["settings"]["step"]
    model = found.load_model(step)
    requests = measure.render_suite(["svamp"], mini_data_dir(), 3)
    stored = read_lines(Prediction, file.parent / "tasks" / "svamp.jsonl")
    assert sorted(predict(model, found.codec, requests), key=repr) == sorted(stored, key=repr)


def test_what_was_measured_with_the_same_settings_is_not_measured_again(here: Path, predicted: list[str]) -> None:
    def evaluate(*more: str) -> list[str]:
        predicted.clear()
        assert run("eval", "run", *more, *MINI) == 0
        return list(predicted)

    assert evaluate("--suite", "svamp", "--limit", "3") == ["svamp"]
    assert evaluate("--suite", "svamp", "asdiv", "--limit", "3") == ["asdiv"]
    assert evaluate("--suite", "svamp", "--limit", "3", "--loops", "2") == []  # as many as in training
    assert evaluate("--suite", "svamp", "--limit", "4") == ["svamp"]
    assert evaluate("--suite", "svamp", "--limit", "3", "--likelihood-only") == ["svamp"]
    assert evaluate("--suite", "svamp", "--limit", "3", "--loops", "1", "3") == ["svamp", "svamp"]
    assert evaluate("--suite", "svamp", "--limit", "3") == []


def test_other_data_weights_and_devices_and_damage_are_measured_again(here: Path, predicted: list[str]) -> None:
    shutil.copytree(mini_data_dir() / "svamp", here / "data" / "svamp")
    evaluate = ("eval", "run", "--suite", "svamp", "--limit", "3", "--device", "cpu", "--out", "out", "--data-dir")
    assert run(*evaluate, "data") == 0
    data = here / "data" / "svamp" / "eval.jsonl"
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    data.write_text("".join(json.dumps(line | {"question": "How many, then?"}) + "\n" for line in lines))
    assert run(*evaluate, "data") == 0
    assert predicted == ["svamp", "svamp"]
    (file,) = here.glob("out/*/tasks/svamp.json")
    file.write_text(file.read_text()[:-30])
    assert run(*evaluate, "data") == 0
    stored = results(file)
    assert stored["settings"]["device"] == "cpu"
    for other in ({"weights": "of another checkpoint"}, {"device": "cuda"}):
        file.write_text(json.dumps(signed({**stored, "settings": {**stored["settings"], **other}})))
        assert run(*evaluate, "data") == 0
    assert predicted == ["svamp"] * 5


def test_the_stages_one_by_one_give_what_all_at_once_gives(here: Path) -> None:
    assert run("eval", "run", "--suite", "svamp", "--limit", "3", "--out", "out", *MINI) == 0
    given = ("--suite", "svamp", "--limit", "3", "--data-dir", str(mini_data_dir()))
    assert run("eval", "render", *given, "--out", "requests.jsonl") == 0
    to_predict = ("--requests", "requests.jsonl", "--out", "predictions.jsonl", "--device", "cpu")
    assert run("eval", "predict", "run", *to_predict) == 0
    to_score = ("--requests", "requests.jsonl", "--predictions", "predictions.jsonl", "--out", "scores.json")
    assert run("eval", "score", *to_score) == 0
    (file,) = here.glob("out/*/svamp.json")
    assert SuiteScores.from_json(json.loads(Path("scores.json").read_text())) == SuiteScores.from_json(results(file))


def test_lines_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    requests = [
        Request("one", "ä\u2028", ("a\n\n",), "b:", ("c", "d"), ("\n",), 4),
        Request("two", "", (), "", ("",), (), 1),
    ]
    predictions = [Prediction("one", "1", None, 2.5, 3, 0, 7), Prediction("one", "2", " c\n", 0.0, 1, 2)]
    for ending in ("", ".gz"):
        write_lines(tmp_path / f"requests{ending}", requests)
        write_lines(tmp_path / f"predictions{ending}", predictions)
        assert read_lines(Request, tmp_path / f"requests{ending}") == requests
        assert read_lines(Prediction, tmp_path / f"predictions{ending}") == predictions
    packed, plain = (tmp_path / "requests.gz").read_bytes(), (tmp_path / "requests").read_bytes()
    assert gzip.decompress(packed) == plain
    for damaged in (packed[:-3], plain, packed[:12] + b"...." + packed[16:]):
        (tmp_path / "requests.gz").write_bytes(damaged)
        with pytest.raises(InputError, match=r"requests\.gz: allowed is a whole file of gzip"):
            read_lines(Request, tmp_path / "requests.gz")
    assert by_task(requests) == {"one": requests[:1], "two": requests[1:]}


def test_a_prompt_is_shown_without_a_model_or_data(capsys: Captured) -> None:
    assert run("eval", "--show-prompt", "squad_v2") == 0
    shown = capsys.readouterr()
    assert shown.out.rstrip().endswith("Answer:")
    assert "Right: " in shown.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--suite svamp", "run: which model? Allowed is one of RUN, the directory of a run, and --hf NAME_OR_DIR"),
        ("run --hf other --suite svamp", "run: which model?"),
        ("run --suite fly", "no task or group 'fly'; allowed are paper, closed_book"),
        ("run --suite", "suite: nothing named; allowed are paper, a group or a task"),
        ("run --suite svamp --limit 0", "limit=0: allowed is 1 to 1000000000"),
        ("run --suite svamp --loops 0", "loops"),
        ("run --suite svamp --checkpoint 77", "checkpoint=77: allowed is best | last |"),
        ("--hf nowhere --suite svamp --loops 3", "loops=3: allowed is none with --hf"),
        ("--show-prompt fly", "show-prompt: no task fly; allowed are triviaqa"),
        ("run --suite svamp --data-dir nowhere", "no file nowhere/svamp/eval.jsonl"),
        ("predict run --requests nowhere.jsonl --out p", "cannot read nowhere.jsonl: No such file"),
        ("predict run --requests bad.jsonl --out p", "bad.jsonl:1.shots: missing"),
        ("predict run --requests empty.jsonl --out p", "empty.jsonl: there is no line in it"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_in_one_line(
    arguments: str, said: str, here: Path, capsys: Captured
) -> None:
    fields = {"task": "svamp", "id": "1", "question": "?", "golds": ["1"], "stop": [], "max_new_tokens": 1}
    Path("bad.jsonl").write_text(json.dumps(fields) + "\n")
    Path("empty.jsonl").write_text("\n")
    data = () if "--data-dir" in arguments or "predict" in arguments else MINI[:2]
    assert run("eval", *arguments.split(), *data) == 2
    error = capsys.readouterr().err
    assert is_refusal(error)
    assert said in error
