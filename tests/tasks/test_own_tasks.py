"""A task of the user's own is known once it is imported, refused where it is wrong, and never run unasked."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from loopt import InputError, load, tasks
from loopt.runs import Run, codec
from loopt.source import Source
from loopt.tasks import IGNORE, Batch, Stream, Task, check_examples, import_tasks, register, registry
from loopt.training import train
from tiny_runs import CPU, TINY

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_task.py"


@pytest.fixture(autouse=True)
def as_if_nothing_was_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_known", "_origins"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        if "loopt-import:" in name or name in ("beside", "raising"):
            del sys.modules[name]
    sys.path[:] = path


def script(path: Path, text: str = "") -> str:
    path.write_text(text or EXAMPLE.read_text())
    return str(path)


class Doubling(Task):
    """Twice the digit before: a task without anything special."""

    name = "doubling"
    vocabulary = tuple("0123456789")
    length = 3

    def draw(self, indices: Tensor, stream: Stream) -> Batch:
        digits = stream.integers(indices, 3, 5, "digits")
        answers = torch.full_like(digits, IGNORE)
        answers[:, -1] = 2 * digits[:, -1]
        return Batch(digits, 2 * digits, answers)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        return [token + token for token in tokens]

    def render(self, tokens: Sequence[int]) -> str:
        return f"{tokens}: {2 * tokens[-1]}"


def made(changes: dict[str, Any], base: type = Doubling) -> Any:
    """A class with these attributes, as a dataclass."""
    return dataclass(frozen=True)(type("Own", (base,), {"__module__": __name__, **changes}))


class NoTask:
    name = "no_task"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (NoTask, "a class derived from loopt.tasks.Task"),
        (made({"name": "My task"}), "name='My task'; allowed are lowercase letters, digits and _"),
        (made({"name": "text"}), "name='text'; allowed is another, since models train on text"),
        (Doubling, "no dataclass; allowed is @dataclass(frozen=True), right below @register"),
        (made({"name": "half", "length": 3}, Task), "it has no draw, render, solve, vocabulary"),
        (made({"__annotations__": {"size": int}}), "its setting size has no default"),
        (made({"name": "phop"}), "'phop' is the name of PHop of loopt and of Own of"),
    ],
)
def test_a_class_that_is_no_task_is_refused_when_it_is_registered(wrong: Any, told: str) -> None:
    with pytest.raises(InputError) as refused:
        register(wrong)
    assert told in str(refused.value)


def test_a_registered_task_is_known_by_its_name() -> None:
    doubling = register(made({"__annotations__": {"size": int}, "size": 4}))
    assert tasks.names()[-1] == "doubling"
    assert tasks.get("doubling", size=5) == doubling(size=5)
    assert tasks.origin_of("doubling") == __name__
    assert tasks.origin_of("phop") is None
    again = register(made({}))  # as when a cell of a notebook runs again
    assert tasks.known()["doubling"] is again


def test_a_script_of_any_name_is_imported_once_with_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("SIZE = 12\n")
    text = EXAMPLE.read_text().replace("n: int = 16", "n: int = beside.SIZE")
    path = script(tmp_path / "my-task 2.py", "import beside\n" + text)
    import_tasks(path)
    parity = tasks.known()["parity"]
    assert tasks.get("parity").length == 12
    assert tasks.origin_of("parity") == path
    import_tasks(path)
    assert tasks.known()["parity"] is parity


def test_two_tasks_of_one_name_are_refused_by_both_names(tmp_path: Path) -> None:
    first, second = script(tmp_path / "first.py"), script(tmp_path / "second.py")
    import_tasks(first)
    with pytest.raises(InputError) as refused:
        import_tasks(second)
    assert f"Parity of {first}" in str(refused.value)
    assert f"Parity of {second}" in str(refused.value)


@pytest.mark.parametrize(
    ("what", "text", "told"),
    [
        ("nowhere.py", None, "import=nowhere.py: no such file"),
        ("some.txt", "x", "import=./some.txt: allowed is a Python script"),
        ("typo.py", "def f(:\n", "import=./typo.py: line 1: SyntaxError"),
        ("wrong.py", "import torch\n\ntorch.nonesuch\n", "import=./wrong.py: line 3: AttributeError"),
        ("none.py", "x = 1\n", "import=./none.py: it registers no task; allowed is one with @loopt.tasks.register"),
        ("nosuchmodule", None, "no such module; allowed is the path of a Python script, or the name of an installed"),
        ("here", "", "the file here is here.py"),
        ("..", None, "no such module"),
    ],
)
def test_what_cannot_be_imported_is_said_in_one_line(
    what: str, text: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(what if "." in what else f"{what}.py").write_text(text)
    with pytest.raises(InputError) as refused:
        import_tasks(f"./{what}" if text else what)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def draws(change: Any) -> dict[str, Any]:
    """A ``draw`` that gives what ``change`` makes of the right batch."""
    return {"draw": lambda self, indices, stream: change(Doubling.draw(self, indices, stream))}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            draws(lambda b: replace(b, tokens=b.tokens.float())),
            "tokens of 8 examples are float32 [8, 3]",
        ),
        (draws(lambda b: replace(b, targets=b.targets[:, :2])), "targets are [8, 2], tokens [8, 3]"),
        ({"length": 2}, "up to length=2 wide"),
        ({"vocabulary": tuple("0123")}, "tokens have 4; allowed are 0 to 3, the vocabulary's"),
        (draws(lambda b: replace(b, answers=b.answers - 1)), "answers have -101"),
        (draws(lambda b: replace(b, answers=torch.full_like(b.answers, IGNORE))), "an example has no answers"),
        (draws(lambda b: replace(b, tokens=torch.randint(5, b.tokens.shape))), "draw gave other tokens"),
        ({"solve": lambda self, tokens: [0]}, "solve gave 1 labels for 3 tokens"),
        ({"solve": lambda self, tokens: [2 * t + (t == 3) for t in tokens]}, "where solve has 7"),
        (draws(lambda b: b.tokens[:, 9]), "IndexError: index 9 is out of bounds for dimension 1 with size 3"),
        (draws(lambda b: [][0]), "IndexError: list index out of range in test_own_tasks.py, line"),
    ],
)
def test_a_task_that_breaks_its_promises_is_refused_before_it_is_trained_on(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    check_examples(register(made({}))())  # nothing to complain about
    task = register(made(changes))()
    with pytest.raises(InputError) as refused:
        train(replace(TINY, source=task), tmp_path / "run", CPU)
    assert str(refused.value).startswith("task doubling: ")
    assert told in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_run_says_what_to_import_and_runs_nothing_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = 'from pathlib import Path\n\nPath(__file__).with_suffix(".ran").write_text("")\n'
    path = Path(script(tmp_path / "it's mine.py", EXAMPLE.read_text() + written))
    unknown = dict(registry._known)
    import_tasks(str(path))
    config = replace(TINY, source=tasks.get("parity", n=4), steps=6)
    train(config, tmp_path / "run", CPU)
    assert Run.load(tmp_path / "run").config.source == config.source
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["source"]["import"] == str(path)

    path.with_suffix(".ran").unlink()
    monkeypatch.setattr(registry, "_known", unknown)
    with pytest.raises(InputError, match="parity: allowed is a task that is known; add --import ") as refused:
        load(tmp_path / "run")
    quoted = str(path).replace("'", "'\"'\"'")
    assert f"add --import '{quoted}' (in Python" in str(refused.value)
    path.unlink()
    with pytest.raises(InputError, match="which is not there: give where it is now"):
        load(tmp_path / "run")
    assert not path.with_suffix(".ran").exists()


def test_where_a_task_came_from_is_no_part_of_a_runs_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(TINY, source=register(made({}))())
    before = codec.fingerprint(config)
    monkeypatch.setitem(registry._origins, "doubling", "elsewhere.py")
    assert codec.to_json(config)["source"]["import"] == "elsewhere.py"
    assert codec.fingerprint(config) == before
    assert codec.from_json(codec.to_json(config)) == config
    with pytest.raises(InputError, match=r"config.source.import=3: allowed is a value of type str"):
        codec.from_json({**codec.to_json(config), "source": {"name": "doubling", "import": 3}})


def test_loopts_own_tasks_are_not_marked_in_a_config() -> None:
    assert isinstance(TINY.source, Source)
    assert dataclasses.asdict(TINY.source).keys() | {"name"} == codec.to_json(TINY)["source"].keys()  # type: ignore[call-overload]


@pytest.mark.slow
def test_an_installed_package_names_its_tasks_as_entry_points(tmp_path: Path) -> None:
    """One that cannot be loaded is reported, and keeps no other from being used."""
    script(tmp_path / "bits.py", EXAMPLE.read_text().replace("@register\n", ""))
    info = tmp_path / "bits-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bits\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[loopt.tasks]\nparity = bits:Parity\nbroken = bits:Nothing\n")
    source = Path(tasks.__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-m", "loopt", "tasks", "show", "parity", "--n", "5"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "ones: answer" in done.stdout
    assert "task broken of the package bits is left out: AttributeError" in done.stderr
