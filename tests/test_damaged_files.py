"""Damage to any file of a run or a corpus is refused in one line or changes nothing: no traceback, no other result."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loopt.errors import InputError
from loopt.files import signed
from loopt.runs import Run, TrainConfig
from loopt.source import SPLITS
from loopt.text.prepare import Settings, prepare
from loopt.text.token_data import TokenData
from loopt.text.tokenizer import train_tokenizer
from loopt.training import Session, train
from tiny_runs import assert_same, finished, stopped, tiny
from tiny_text_runs import prepared, tiny_text, write_documents

TASK = "task:assignment?depth=0&share=0.2"
QUIET = Session(device="cpu", progress=False)
Damage = Callable[[bytes, bytes, random.Random], bytes]


def flip(data: bytes, other: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(max(1, len(data)))
    return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :] if data else b"\0"


def cut(data: bytes, other: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(max(1, len(data)))]


def lengthen(data: bytes, other: bytes, draw: random.Random) -> bytes:
    return data + draw.choice([b"\0", b"}", b"\n{}\n", data])


def swap(data: bytes, other: bytes, draw: random.Random) -> bytes:
    return other


def fill(data: bytes, other: bytes, draw: random.Random) -> bytes:
    return draw.choice([b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 5000, b'{"a":' * 5000, b"9" * 400, b"[NaN]"])


def change_a_number(data: bytes, other: bytes, draw: random.Random) -> bytes:
    numbers = list(re.finditer(rb"(?<=: )-?\d[\d.e+-]*", data))
    if not numbers:
        return flip(data, other, draw)
    place = draw.choice(numbers)
    written = draw.choice([b"NaN", b"-1", b"1e999", b"9" * 400, b'"1"', b"null", b"0.9999", b"[]"])
    return data[: place.start()] + written + data[place.end() :]


def leave_out_a_field(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Of JSON; what has a format, and so must have all its fields, is signed again."""
    try:
        content = json.loads(data)
        del content[draw.choice([name for name in content if name != "sha256"])]
    except (ValueError, TypeError, IndexError):
        return cut(data, other, draw)
    if "format" in content and content.pop("sha256", None):
        content = signed(content)
    return json.dumps(content).encode()


DAMAGES: list[Damage] = [flip, cut, lengthen, swap, fill, change_a_number, leave_out_a_field]


@dataclass(frozen=True)
class Subject:
    """A directory, another one of the same kind, and what can be done with it: each returns what it always returns."""

    directory: Path
    other: Path
    uses: dict[str, Callable[[Path], Any]]


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    home = tmp_path_factory.mktemp("subjects")
    task, another = tiny(steps=12), tiny(steps=12, seed=7)
    whole = finished(task, home / "whole")
    text = tiny_text(data=str(prepared(home, seed=0)))
    (home / "second").mkdir()
    prepared(home / "second", seed=1)
    return {
        "a finished run": Subject(whole, finished(another, home / "another"), uses_of_a_run(task)),
        "a finished run on text": Subject(
            finished(text, home / "text"), finished(tiny_text(steps=8), home / "text8"), uses_of_a_run(text)
        ),
        "a stopped run": Subject(
            stopped(task, home / "stopped", step=8),
            stopped(another, home / "another stopped", step=8),
            {"resume": lambda run: resumed(task, run, whole)},
        ),
        "a tokenizer": Subject(tokenizer_in(home / "one"), tokenizer_in(home / "two"), {"use": uses_a_tokenizer}),
        "a corpus": Subject(home / "data", home / "second" / "data", {"read": tokens_of}),
        "a corpus half prepared": Subject(
            half_prepared(home, seed=0),
            half_prepared(home, seed=1),
            {"resume": lambda data: prepared_again(home, data)},
        ),
        "a mixed corpus half prepared": Subject(
            half_prepared(home, 0, TASK),
            half_prepared(home, 1, TASK),
            {"resume": lambda data: prepared_again(home, data, TASK)},
        ),
    }


def uses_of_a_run(config: TrainConfig) -> dict[str, Callable[[Path], Any]]:
    def weights(which: Any) -> Callable[[Path], Any]:
        return lambda run: {k: v.tolist() for k, v in Run.load(run).load_model(which).state_dict().items()}

    return {
        "train": lambda run: train(config, run, QUIET).result,
        "result": lambda run: Run.load(run).read_result(),
        "metrics": lambda run: Run.load(run).read_metrics(),
        "best": weights("best"),
        "last": weights("last"),
    }


def resumed(config: TrainConfig, run: Path, whole: Path) -> bool:
    assert train(config, run, QUIET).finished
    assert_same(run, whole)
    return True


def tokens_of(directory: Path) -> Any:
    data = TokenData.open(directory)
    tokens = {split: [token for chunk in data.chunks(split) for token in chunk.tolist()] for split in SPLITS}
    return tokens, data.tokenizer_file().text


def tokenizer_in(directory: Path) -> Path:
    directory.mkdir()
    words = directory.name  # another text gives another tokenizer
    (directory / "tokenizer.json").write_text(train_tokenizer([f"{words} {words}s"], 280).text, encoding="utf-8")
    return directory


def uses_a_tokenizer(directory: Path) -> bool:
    """An edited tokenizer may well be another one, so that it works is all that stays the same."""
    (directory / "text.txt").write_text("one and two, " * 50)
    given = Settings((str(directory / "text.txt"),), str(directory / "tokenizer.json"), validation=0, test=0)
    prepare(given, directory / "data", 1)
    tokens_of(directory / "data")
    return True


class StoppedError(Exception):
    pass


def settings_of(home: Path, seed: int, *tasks: str) -> Settings:
    source = home / f"half-{seed}.jsonl"
    if not source.exists():
        write_documents(source, seed)
    tokenizer = str(home / "tokenizer.json")
    return Settings((str(source), *tasks), tokenizer, validation=0.2, test=0.2, shard_bytes=4000)


def half_prepared(home: Path, seed: int, *tasks: str) -> Path:
    reports = 0

    def stop(progress: object) -> None:
        nonlocal reports
        reports += 1
        if reports == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        prepare(settings_of(home, seed, *tasks), home / f"half-{seed}-{len(tasks)}", 1, stop)
    return home / f"half-{seed}-{len(tasks)}"


def prepared_again(home: Path, directory: Path, *tasks: str) -> Any:
    prepare(settings_of(home, 0, *tasks), directory, 1)
    return tokens_of(directory)


def outcome_of(use: Callable[[Path], Any], directory: Path) -> tuple[Any, InputError | str | None]:
    """Returns what came of it, or the error that is meant for the user, or the text of one that is not."""
    try:
        return use(directory), None
    except InputError as error:
        return None, error
    except BaseException as error:
        return None, repr(error)


def files_of(directory: Path) -> list[Path]:
    return sorted(path.relative_to(directory) for path in directory.rglob("*") if path.is_file())


def damages(subject: Subject, count: int, seed: int) -> Iterator[tuple[Path, Damage, bytes]]:
    """Yields files with what they hold after damage, every file and every kind of damage as often as the other."""
    draw = random.Random(seed)
    pairs = [(file, damage) for file in files_of(subject.directory) for damage in DAMAGES]
    draw.shuffle(pairs)
    for file, damage in (pairs * (count // len(pairs) + 1))[:count]:
        before = (subject.directory / file).read_bytes()
        other = subject.other / file
        after = damage(before, other.read_bytes() if other.exists() else b"", draw)
        if after != before:
            yield file, damage, after


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("a finished run", 80),
        ("a finished run on text", 80),
        ("a stopped run", 80),
        ("a tokenizer", 150),
        ("a corpus", 150),
        ("a corpus half prepared", 60),
        ("a mixed corpus half prepared", 60),
    ],
)
def test_damage_is_refused_or_changes_nothing(
    subjects: dict[str, Subject], kind: str, count: int, tmp_path: Path
) -> None:
    subject = subjects[kind]
    expected: dict[str, Any] = {}
    for name, use in subject.uses.items():
        expected[name] = use(shutil.copytree(subject.directory, tmp_path / name))
    refused = 0
    for number, (file, damage, after) in enumerate(damages(subject, count, seed=0)):
        for name, use in subject.uses.items():
            copy = shutil.copytree(subject.directory, tmp_path / f"{number} {name}")
            (copy / file).write_bytes(after)
            what = f"{name} after {damage.__name__} of {file}: {after[:60]!r}"
            found, error = outcome_of(use, copy)
            assert not isinstance(error, str), f"{what}: {error}"
            assert error is not None or found == expected[name], what
            assert "\n" not in str(error), what
            refused += error is not None
            shutil.rmtree(copy)
    assert refused > count // 4
