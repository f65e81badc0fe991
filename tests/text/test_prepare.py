"""Shards have every document once; killed and resumed, with any number of workers, they have the same bytes."""

from __future__ import annotations

import fcntl
import gzip
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tiny_text import (
    contents,
    documents,
    expected_ids,
    prepared,
    settings,
    stored_ids,
    tokenizer,
    write_lines,
)

from loopt.errors import InputError
from loopt.source import SPLITS, Split
from loopt.text.index import Index
from loopt.text.prepare import Progress, Settings, prepare
from loopt.text.token_data import TokenData

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # here processes are forked

TEXTS = documents(120)


def test_every_document_is_there_once_in_order_and_ended(tmp_path: Path) -> None:
    directory = prepared(tmp_path, TEXTS)
    index = Index.read(directory / "index.json")
    assert len(index.of("train")) > 4
    for split in SPLITS:
        ids = expected_ids(TEXTS, split)
        assert stored_ids(directory, split) == ids
        assert index.tokens(split) == len(ids)
        assert index.documents(split) == ids.count(0) > 0
    assert sum(map(index.text_bytes, SPLITS)) == sum(len(text.encode()) for text in TEXTS)
    assert (directory / "tokenizer.json").read_text(encoding="utf-8") == tokenizer().text
    assert {p.name for p in directory.iterdir()} == {"index.json", "tokenizer.json", ".lock"} | {
        shard.file for shard in index.shards
    }


@given(texts=st.lists(st.text(min_size=1, max_size=50), min_size=1, max_size=40), shard_bytes=st.integers(1, 300))
@hypothesis_settings(max_examples=25, deadline=None)
def test_a_shard_ends_with_the_document_that_fills_it(texts: list[str], shard_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = prepared(Path(folder), texts, validation=0, test=0, shard_bytes=shard_bytes)
        shards = [(shard.documents, shard.parts[0].text_bytes) for shard in Index.read(made / "index.json").shards]
    sizes = iter([len(text.encode()) for text in texts])
    expected = []
    for size in sizes:
        filled = [size]
        while sum(filled) < shard_bytes and (more := next(sizes, None)) is not None:
            filled.append(more)
        expected.append((len(filled), sum(filled)))
    assert shards == expected


def test_the_bytes_do_not_depend_on_workers_or_on_where_the_text_lies(tmp_path: Path) -> None:
    one = prepared(tmp_path, TEXTS, "one")
    moved = [
        write_lines(tmp_path / "moved" / "a.jsonl", TEXTS[:50]),
        write_lines(tmp_path / "moved" / "b.jsonl", TEXTS[50:]),
    ]
    two = tmp_path / "two"
    prepare(settings(tmp_path, *moved), two, workers=2)
    assert TokenData.open(one).fingerprint == TokenData.open(two).fingerprint
    shards = {name: data for name, data in contents(one).items() if name != "index.json"}
    assert shards == {name: data for name, data in contents(two).items() if name != "index.json"}


MAIN = """
import sys
from pathlib import Path
from loopt.text.prepare import Settings, prepare

with open("imported", "a") as file:
    file.write(f"{__name__} ")
if __name__ == "__main__":
    prepare(Settings(("x.jsonl",), sys.argv[1], validation=0.2, test=0.2), Path("data"), workers=2)
"""


def test_workers_import_neither_the_main_module_of_their_caller_nor_torch(tmp_path: Path) -> None:
    how = settings(tmp_path, write_lines(tmp_path / "x.jsonl", TEXTS))
    (tmp_path / "caller.py").write_text(MAIN)
    subprocess.run([sys.executable, "caller.py", how.tokenizer], cwd=tmp_path, check=True)
    assert (tmp_path / "data" / "index.json").exists()
    assert (tmp_path / "imported").read_text() == "__main__ "
    imports_torch = "import sys, loopt.text.encoding; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", imports_torch], check=True)


def test_the_fingerprint_tells_text_tokenizer_and_settings_apart(tmp_path: Path) -> None:
    def fingerprint(name: str, texts: list[str] = TEXTS, **changed: Any) -> str:
        return TokenData.open(prepared(tmp_path, texts, name, **changed)).fingerprint

    fingerprints = [
        fingerprint("first"),
        fingerprint("text", [*TEXTS[:-1], "another"]),
        fingerprint("order", TEXTS[::-1]),
        fingerprint("fewer", TEXTS[:-1]),
        fingerprint("validation", validation=0.3),
        fingerprint("test", test=0.3),
        fingerprint("shards", shard_bytes=3001),
        fingerprint("ids", id_type="uint32"),
    ]
    other = tmp_path / "other.json"
    other.write_text(tokenizer().text + "\n")
    changed = replace(settings(tmp_path, tmp_path / "first.jsonl"), tokenizer=str(other))
    fingerprints.append(prepare(changed, tmp_path / "tokenizer", workers=1).fingerprint)
    assert len(set(fingerprints)) == len(fingerprints)
    assert fingerprint("again") == fingerprints[0]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_document_is_in_the_same_split_in_every_corpus(split: Split, tmp_path: Path) -> None:
    held_out = stored_ids(prepared(tmp_path, TEXTS, "all"), split)
    others = stored_ids(prepared(tmp_path, TEXTS[60:] + documents(30, seed=5), "others"), split)
    common = expected_ids(TEXTS[60:], split)
    assert held_out[-len(common) :] == common == others[: len(common)]


def test_progress_adds_up(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "x.jsonl", TEXTS)
    seen: list[Progress] = []
    index = prepare(settings(tmp_path, source), tmp_path / "data", workers=1, report=seen.append)
    last = seen[-1]
    assert (last.documents, last.tokens) == (len(TEXTS), sum(shard.tokens for shard in index.shards))
    assert last.bytes_read == last.bytes_stored == source.stat().st_size
    assert [one.tokens for one in seen] == sorted(one.tokens for one in seen)
    assert last.source == str(source)


# Killed, and refused

PLACES = [
    r"os\.mkdir data-1",
    r"open \.lock",
    r"open \.tokenizer\.json\.tmp",
    r"os\.rename \.tokenizer\.json\.tmp tokenizer\.json",
    r"os\.rename \.unfinished\.json\.tmp unfinished\.json",
    r"open \.train-00001\.bin\.tmp",
    r"os\.rename \.train-00001\.bin\.tmp train-00001\.bin",
    r"os\.rename \.validation-00001\.bin\.tmp validation-00001\.bin",
    r"os\.rename \.test-00001\.bin\.tmp test-00001\.bin",
    r"os\.rename unfinished\.json index\.json",
]


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips fsync, which takes most of the time and protects from crashes of the machine, not of a process."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.slow
@pytest.mark.usefixtures("no_fsync")
def test_killed_at_every_file_operation(tmp_path: Path) -> None:
    tasks = ("task:assignment?depth=1&share=0.1", "task:addition?operands=2&share=0.1")  # beside text
    how = settings(tmp_path, write_lines(tmp_path / "x.jsonl", TEXTS[:48]), *tasks, shard_bytes=4500)
    prepare(how, tmp_path / "unbroken", workers=1)
    unbroken = contents(tmp_path / "unbroken")
    places: list[str] = []
    while True:
        directory, struck_at = tmp_path / f"data-{len(places) + 1}", tmp_path / "struck"
        exit_code = in_a_fork(strike_and_prepare, how, directory, len(places) + 1, struck_at)
        if exit_code == 0:
            break
        assert exit_code == -signal.SIGKILL
        places.append(struck_at.read_text())
        prepare(how, directory, workers=1)
        assert contents(directory) == unbroken, places[-1]
    assert not [place for place in PLACES if not any(re.fullmatch(place, seen) for seen in places)], places


@pytest.mark.slow
@pytest.mark.usefixtures("no_fsync")
def test_killed_again_and_again(tmp_path: Path) -> None:
    """Each process gets one operation further than the one before; the first make no progress, and leave files."""
    how = settings(tmp_path, write_lines(tmp_path / "x.jsonl", TEXTS))
    prepare(how, tmp_path / "unbroken", workers=1)
    kills = 0
    while in_a_fork(strike_and_prepare, how, tmp_path / "data", kills + 1, tmp_path / "struck"):
        kills += 1
    assert kills > 20
    assert contents(tmp_path / "data") == contents(tmp_path / "unbroken")


def strike_and_prepare(how: Settings, directory: Path, operations: int, struck_at: Path) -> None:
    """Prepares, but is killed right before the given operation on the directory."""
    done = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal done
        if event not in ("open", "os.mkdir", "os.rename", "os.remove") or not str(arguments[0]).startswith(
            str(directory)
        ):
            return
        done += 1
        if done == operations:
            names = [Path(path).name for path in arguments[: 2 if event == "os.rename" else 1]]
            descriptor = os.open(struck_at, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(descriptor, " ".join([event, *names]).encode())
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    prepare(how, directory, workers=1)


def in_a_fork(work: Callable[..., None], *arguments: object) -> int:
    child = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    child.start()
    child.join(60)
    assert child.exitcode is not None
    return child.exitcode


def test_a_full_disk_is_reported_and_the_same_command_resumes(tmp_path: Path) -> None:
    how = settings(tmp_path, write_lines(tmp_path / "x.jsonl", TEXTS), shard_bytes=10**6)
    told = tmp_path / "told"

    def with_files_of_at_most(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        try:
            prepare(how, tmp_path / "data", workers=1)
        except InputError as error:
            told.write_text(str(error))

    in_a_fork(with_files_of_at_most, 6000)
    assert "File too large; once that is fixed, the same command resumes" in told.read_text()
    prepare(how, tmp_path / "data", workers=1)
    prepare(how, tmp_path / "unbroken", workers=1)
    assert contents(tmp_path / "data") == contents(tmp_path / "unbroken")


def test_a_broken_line_stops_preparing_which_resumes_once_it_is_repaired(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "x.jsonl", TEXTS)
    whole = source.read_bytes()
    lines = whole.splitlines(keepends=True)
    source.write_bytes(b"".join([*lines[:100], b'{"text": \n', *lines[101:]]))
    how, directory = settings(tmp_path, source), tmp_path / "data"
    with pytest.raises(InputError, match=r"x\.jsonl, line 101: not a line of JSON"):
        prepare(how, directory, workers=1)
    kept = sorted(directory.glob("*.bin"))
    assert kept
    times = [path.stat().st_mtime_ns for path in kept]
    with pytest.raises(InputError, match="is not prepared to the end"):
        TokenData.open(directory)
    source.write_bytes(whole)
    prepare(how, directory, workers=1)
    assert [path.stat().st_mtime_ns for path in kept] == times
    prepare(how, tmp_path / "unbroken", workers=1)
    assert contents(directory) == contents(tmp_path / "unbroken")


def test_a_finished_directory_is_left_alone(tmp_path: Path) -> None:
    directory = prepared(tmp_path, TEXTS)
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    prepared(tmp_path, TEXTS)
    assert {path: path.stat().st_mtime_ns for path in directory.iterdir()} == before


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"validation": 0.3}, "validation=0.2, now 0.3"),
        ({"test": 0.3}, "test=0.2, now 0.3"),
        ({"shard_bytes": 2999}, "shard_bytes=3000, now 2999"),
        ({"text_field": "body"}, "text_field=text, now body"),
        ({"id_type": "uint32"}, "id_type=uint16, now uint32"),
        ({"tokenizer": "other.json"}, "tokenizer_sha256="),
        ({"source": ("other.jsonl",)}, r"source=x\.jsonl, and what was read of it has changed since"),
    ],
)
def test_other_settings_are_refused_by_name(
    changed: dict[str, Any], told: str, finished: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "x.jsonl", TEXTS)
    write_lines(tmp_path / "other.jsonl", TEXTS[1:])
    (tmp_path / "other.json").write_text(tokenizer().text + "\n")
    how = settings(tmp_path, "x.jsonl")
    prepare(how, tmp_path / "data", workers=1)
    if not finished:
        undo_the_end(tmp_path / "data")
    before = contents(tmp_path / "data")
    with pytest.raises(InputError, match=f"data was begun with {told}"):
        prepare(replace(how, **changed), tmp_path / "data", workers=1)
    assert contents(tmp_path / "data") == before


def undo_the_end(directory: Path) -> None:
    """Leaves a directory as if killed one shard before the end."""
    index = Index.read(directory / "index.json")
    last_of = {shard.split: shard for shard in index.shards}
    kept = tuple(shard for shard in index.shards if shard not in last_of.values())
    replace(index, shards=kept).write(directory / "unfinished.json")
    (directory / "index.json").unlink()


def test_a_shard_cut_short_is_refused_by_name(tmp_path: Path) -> None:
    directory = prepared(tmp_path, TEXTS)
    undo_the_end(directory)
    os.truncate(directory / "train-00000.bin", 10)
    with pytest.raises(InputError, match=r"train-00000\.bin: missing or cut short since it was written"):
        prepared(tmp_path, TEXTS)


@pytest.mark.parametrize(
    ("texts", "changed", "told"),
    [
        ([], {}, r"source=.*jsonl: an empty corpus"),
        (["", ""], {}, r"source=.*jsonl: an empty corpus"),
        (["one document"], {"validation": 0.01, "test": 0}, r"validation=0\.01: none of the 1 documents is held out"),
        (["one document"], {"validation": 0, "test": 0.01}, r"test=0\.01: none of the 1 documents is held out"),
        (["one document"], {"validation": 0.9999999, "test": 0}, r"validation=0\.9999999, test=0: all 1 documents are"),
    ],
)
def test_a_useless_corpus_is_refused_and_nothing_of_it_kept(
    texts: list[str], changed: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=told):
        prepared(tmp_path, texts, **changed)
    assert {path.name for path in (tmp_path / "data").iterdir()} == {".lock"}
    prepared(tmp_path, TEXTS, **changed | {"validation": 0.3, "test": 0.3})


@pytest.mark.parametrize("texts", [TEXTS, []])
def test_a_tokenizer_of_the_user_in_the_directory_is_neither_replaced_nor_removed(
    texts: list[str], tmp_path: Path
) -> None:
    how = settings(tmp_path, write_lines(tmp_path / "x.jsonl", texts))
    own = tmp_path / "mine" / "tokenizer.json"
    own.parent.mkdir()
    for text in (tokenizer().text, "of another model"):
        own.write_text(text)
        for one in (how, replace(how, tokenizer=str(own))) if text == tokenizer().text else (how,):
            with pytest.raises(InputError, match=r"mine: holds tokenizer\.json; choose an empty or a new directory"):
                prepare(one, own.parent, workers=1)
            assert contents(own.parent) == {"tokenizer.json": text.encode()}


OWN = {
    "train-notes.bin": b"notes",
    "train-00099.bin": b"numbers",
    ".draft.tmp": b"a draft",
    "notes.txt": b"a note",
    ".index.json.tmp": b"a list",
}


@pytest.mark.parametrize("useless", [True, False])
def test_files_of_the_user_in_a_directory_that_is_begun_are_kept(useless: bool, tmp_path: Path) -> None:
    texts = ["one document"] if useless else TEXTS
    source = write_lines(tmp_path / "x.jsonl", [*texts, ""])
    broken = source.read_bytes() + b"broken"
    source.write_bytes(broken)
    how, directory = settings(tmp_path, source), tmp_path / "data"
    with pytest.raises(InputError, match="not a line of JSON"):
        prepare(how, directory, workers=1)
    for name, data in OWN.items():
        (directory / name).write_bytes(data)
    source.write_bytes(broken.removesuffix(b"broken"))
    if useless:
        with pytest.raises(InputError, match="held out"):
            prepare(how, directory, workers=1)
        assert contents(directory) == {".lock": b""} | OWN
    else:
        prepare(how, directory, workers=1)
        assert contents(directory) == contents(prepared(tmp_path, texts, "other")) | {
            name: contents(directory)[name] for name in ("index.json", *OWN)
        }
        assert contents(directory).items() >= OWN.items()


@pytest.mark.parametrize("name", ["tokenizer.json", "train-00001.bin"])
def test_a_file_that_this_command_did_not_make_is_not_replaced(name: str, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "x.jsonl", TEXTS)
    whole = source.read_bytes()
    source.write_bytes(b"".join([*whole.splitlines(keepends=True)[:3], b"broken\n"]))
    how, directory = settings(tmp_path, source, shard_bytes=300), tmp_path / "data"
    with pytest.raises(InputError, match="not a line of JSON"):
        prepare(how, directory, workers=1)
    source.write_bytes(whole)
    (directory / name).write_bytes(b"my own")
    with pytest.raises(InputError, match=rf"{re.escape(name)}: .*; move it away"):
        prepare(how, directory, workers=1)
    assert (directory / name).read_bytes() == b"my own"
    (directory / name).unlink()
    prepare(how, directory, workers=1)
    prepare(how, tmp_path / "unbroken", workers=1)
    assert contents(directory) == contents(tmp_path / "unbroken")


def test_a_tokenizer_that_is_only_in_the_directory_is_not_removed(tmp_path: Path) -> None:
    source = tmp_path / "x.jsonl"
    source.write_text('{"text": ""}\nbroken')
    how, directory = settings(tmp_path, source), tmp_path / "data"
    with pytest.raises(InputError, match="not a line of JSON"):
        prepare(how, directory, workers=1)
    Path(how.tokenizer).unlink()
    source.write_text('{"text": ""}\n')
    with pytest.raises(InputError, match="an empty corpus"):
        prepare(replace(how, tokenizer=str(directory)), directory, workers=1)
    assert (directory / "tokenizer.json").read_text(encoding="utf-8") == tokenizer().text


def swap(lines: list[bytes]) -> list[bytes]:
    return [*lines[:10], lines[99], *lines[11:99], lines[10], *lines[100:]]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("edit", [swap, lambda lines: [lines[-1], *lines], lambda lines: lines[1:]])
def test_text_edited_between_two_sessions_is_refused(
    edit: Callable[[list[bytes]], list[bytes]], suffix: str, tmp_path: Path
) -> None:
    lines = write_lines(tmp_path / "lines", TEXTS).read_bytes().splitlines(keepends=True)
    source = tmp_path / f"x.jsonl{suffix}"

    def write(lines: list[bytes]) -> None:
        source.write_bytes(gzip.compress(b"".join(lines)) if suffix else b"".join(lines))

    how, directory = settings(tmp_path, source, shard_bytes=1000), tmp_path / "data"
    write([*lines[:90], b"broken\n"])
    with pytest.raises(InputError, match="line 91: not a line of JSON"):
        prepare(how, directory, workers=1)
    write(edit(lines))
    before = contents(directory)
    with pytest.raises(InputError, match="what was read of it has changed since"):
        prepare(how, directory, workers=1)
    assert contents(directory) == before
    write(lines)
    prepare(how, directory, workers=1)
    prepare(how, tmp_path / "unbroken", workers=1)
    assert contents(directory) == contents(tmp_path / "unbroken")


def test_nothing_held_out_when_asked_for(tmp_path: Path) -> None:
    index = TokenData.open(prepared(tmp_path, TEXTS, validation=0, test=0)).index
    assert (index.tokens("validation"), index.tokens("test")) == (0, 0)
    assert index.tokens("train") == len(expected_ids(TEXTS, "train", validation=0, test=0))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"validation": 1}, "validation=1: allowed is 0 to less than 1"),
        ({"validation": -0.1}, "validation=-0.1: allowed"),
        ({"validation": float("nan")}, "validation=nan: allowed"),
        ({"test": 1.5}, "test=1.5: allowed is 0 to less than 1"),
        ({"test": 0.8}, "test=0.8: allowed is less than 0.8, beside validation"),
        ({"shard_bytes": 0}, "shard_bytes=0: allowed is 1 to 1099511627776"),
        ({"shard_bytes": 10**30}, "shard_bytes=10+: allowed is 1 to 1099511627776"),
        ({"end_of_document": "</s>"}, "no token '</s>'"),
        ({"tokenizer": "nowhere.json"}, "tokenizer nowhere.json: no such file"),
        ({"source": ("nowhere",)}, "source nowhere: no such file"),
        ({"source": ()}, "source: none given"),
    ],
)
def test_refused_before_anything_is_written(changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        prepare(replace(settings(tmp_path, write_lines(tmp_path / "x.jsonl", TEXTS)), **changed), tmp_path / "data", 1)
    assert not (tmp_path / "data").exists()


def test_a_directory_of_others_and_a_busy_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".lock").touch()
    (tmp_path / "data" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"data: holds thesis\.tex; choose"):
        prepared(tmp_path, TEXTS)
    directory = prepared(tmp_path, TEXTS, "busy")
    with (directory / ".lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="busy: is being prepared by another process"):
            prepared(tmp_path, TEXTS, "busy")
    for workers in (-1, 0, 1025, 10**9):
        with pytest.raises(InputError, match=f"workers={workers}: allowed is 1 to 1024"):
            prepare(settings(tmp_path, tmp_path / "busy.jsonl"), tmp_path / "none", workers=workers)


def test_a_large_vocabulary_takes_larger_ids(tmp_path: Path) -> None:
    words = {"<|endoftext|>": 0} | {f"w{n}": n for n in range(1, 70_000)}
    large = tmp_path / "large.json"
    large.write_text(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "pre_tokenizer": {"type": "WhitespaceSplit"},
                "model": {"type": "WordLevel", "vocab": words, "unk_token": "<|endoftext|>"},
            }
        )
    )
    source = write_lines(tmp_path / "x.jsonl", ["w1 w65535 w65536 w69999"])
    how = replace(settings(tmp_path, source, validation=0, test=0), tokenizer=str(large))
    index = prepare(how, tmp_path / "data", workers=1)
    assert (index.recipe.id_type, index.recipe.vocab_size) == ("uint32", 70_000)
    assert stored_ids(tmp_path / "data", "train") == [1, 65535, 65536, 69999, 0]
    assert TokenData.open(tmp_path / "data").read("train", [0], 4).tolist() == [[1, 65535, 65536, 69999, 0]]
    with pytest.raises(InputError, match=r"id_type=uint16: a vocabulary of 70000 is too large for it; .* up to 65536"):
        prepare(replace(how, id_type="uint16"), tmp_path / "small", workers=1)
    assert not (tmp_path / "small").exists()


@pytest.mark.slow
def test_a_script_without_a_main_guard_prepares_once_and_ends(tmp_path: Path) -> None:
    wanted = prepared(tmp_path / "wanted", TEXTS)
    script = tmp_path / "script.py"
    script.write_text(
        "from loopt.text.prepare import Settings, prepare\n"
        f"settings = {settings(tmp_path / 'wanted', tmp_path / 'wanted' / 'data.jsonl')!r}\n"
        "print('begun', flush=True)\n"
        f"prepare(settings, {str(tmp_path / 'made')!r}, workers=2)\n"
        "print('done')\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "begun\ndone\n", "")
    assert contents(tmp_path / "made") == contents(wanted)


def test_a_source_that_is_one_text_is_refused_with_how_to_write_it() -> None:
    with pytest.raises(
        InputError, match=re.escape("source='texts/': allowed is a tuple of texts, such as (\"texts/\",)")
    ):
        Settings("texts/", "tokenizer.json")  # type: ignore[arg-type]
