"""Text and tasks stand in their shares at every place, nothing held out is trained on, and a stop changes no byte."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tiny_text import contents, documents, expected_ids, settings, stored_ids, tokenizer, write_lines

from loopt.errors import InputError
from loopt.source import SPLITS, Split
from loopt.tasks import VariableAssignment
from loopt.text.index import Index
from loopt.text.prepare import Settings, prepare
from loopt.text.splits import split_of
from loopt.text.task_documents import TaskDocuments
from loopt.text.task_spec import TaskSpec
from loopt.text.token_data import TokenData

TEXTS = documents(120)
TASKS = ("task:assignment?depth=1&shots=1&share=0.2", "task:addition?operands=2,3&share=0.1")


def documents_in(directory: Path, split: Split) -> list[str]:
    """The documents of a split, read back from its tokens."""
    found: list[str] = []
    ids: list[int] = []
    for token in stored_ids(directory, split):
        if token:
            ids.append(token)
        else:
            found.append(tokenizer().decode(ids))
            ids = []
    assert not ids
    return found


def tokens_in(document: str) -> int:
    return len(tokenizer().tokenizer.encode(document).ids) + 1


def first_documents(spec: str, split: Split, count: int) -> list[str]:
    return [one.text for one in islice(TaskDocuments(TaskSpec.parse(spec).task, split).documents(0), count)]


def mixed(tmp_path: Path, *sources: str, name: str = "data", texts: list[str] = TEXTS, **changed: Any) -> Path:
    text = write_lines(tmp_path / "x.jsonl", texts)
    prepare(settings(tmp_path, text, *(sources or TASKS), **changed), tmp_path / name, workers=1)
    return tmp_path / name


ALL_TASKS = ("assignment?depth=0", "assignment?depth=2&rendering=code&shots=2", "addition?operands=2", "phop?p=1&n=9")


@pytest.mark.slow
@given(
    texts=st.lists(st.integers(1, 300), min_size=3, max_size=30),
    shares=st.lists(st.floats(0.01, 0.24), min_size=1, max_size=4),
    characters=st.integers(1, 10_000),
)
@hypothesis_settings(max_examples=12, deadline=None)
def test_every_source_has_its_share_at_every_place(texts: list[int], shares: list[float], characters: int) -> None:
    written = [f"{n} " + "word " * words for n, words in enumerate(texts)]
    specs = [f"task:{task}&share={share:.9f}" for task, share in zip(ALL_TASKS, shares, strict=False)]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        directory = mixed(home, *specs, texts=written, validation=0, test=0, shard_bytes=characters)
        index, found = Index.read(directory / "index.json"), documents_in(directory, "train")

    streams = [written, *(first_documents(spec, "train", len(found)) for spec in specs)]
    weights = [1 - sum(shares), *shares]
    taken, tokens, longest = ([0] * len(streams) for _ in range(3))
    for document in found:
        source = next(n for n, stream in enumerate(streams) if stream[taken[n] : taken[n] + 1] == [document])
        taken[source] += 1
        tokens[source] += tokens_in(document)
        longest[source] = max(longest[source], tokens_in(document))
        places = [count / weight for count, weight in zip(tokens, weights, strict=True)]
        for place, one, weight in zip(places, longest, weights, strict=True):
            assert place - min(places) < one / weight + 1e-3  # ahead of the others by one document at most
    assert taken[0] == len(written)
    for count, one, weight in zip(tokens, longest, weights, strict=True):
        behind = tokens[0] * weight / weights[0] - count
        assert -one <= behind < 1e-3  # nor behind at the end
    assert [index.tokens("train", n) for n in range(len(streams))] == tokens
    assert [index.documents("train", n) for n in range(len(streams))] == taken
    sizes = [sum(len(one.encode()) for one in stream[:n]) for stream, n in zip(streams, taken, strict=True)]
    assert [index.text_bytes("train", n) for n in range(len(streams))] == sizes


def test_beside_text_nothing_of_a_task_is_held_out_and_text_is_as_without(tmp_path: Path) -> None:
    directory = mixed(tmp_path)
    for split in ("validation", "test"):
        assert stored_ids(directory, split) == expected_ids(TEXTS, split)
    drawn = {one for task in TASKS for one in first_documents(task, "train", 300)}
    text = [one for one in documents_in(directory, "train") if one not in drawn]
    assert text == [one for one in TEXTS if split_of(one.encode(), 0.2, 0.2) == "train"]
    index = TokenData.open(directory).index
    assert [index.tokens("test", source) > 0 for source in range(3)] == [True, False, False]


def test_sources_are_counted_by_their_place_among_those_named(tmp_path: Path) -> None:
    first, last = write_lines(tmp_path / "a.jsonl", TEXTS[:70]), write_lines(tmp_path / "b.jsonl", TEXTS[70:])
    how = settings(tmp_path, TASKS[0], first, TASKS[1], last)
    index = prepare(how, tmp_path / "data", workers=1)
    assert index.sources == tuple(map(str, (TASKS[0], first, TASKS[1], last)))
    for split in SPLITS:
        for source, texts in ((1, TEXTS[:70]), (3, TEXTS[70:])):
            assert index.tokens(split, source) == len(expected_ids(texts, split))
    assert index.tokens("train", 0) > index.tokens("train", 2) > 0


def test_documents_that_are_held_out_are_looked_for_among_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^validation=0\.0001: none of the 3 documents is held out"):
        mixed(tmp_path, texts=TEXTS[:3], validation=0.0001, test=0)
    with pytest.raises(InputError, match=r"^validation=0\.9999, test=0: all 3 documents are held out, none is left"):
        mixed(tmp_path, texts=TEXTS[:3], validation=0.9999, test=0)
    with pytest.raises(InputError, match=r"^source=.*: an empty corpus, no document has any text"):
        mixed(tmp_path, texts=["", ""])


# Without text

FEW = "task:assignment?depth=0&variables=2&letters=3&largest=3"
"""A task with 72 different examples: each is drawn in every split."""


def test_a_corpus_of_tasks_alone_has_as_many_documents_as_asked_of_each_split(tmp_path: Path) -> None:
    specs = (f"{FEW}&documents=500", "task:addition?operands=2,3&documents=50")
    index = prepare(settings(tmp_path, *specs, validation=0.1, test=0.2), tmp_path / "data", workers=1)
    counts = [[index.documents(split, source) for split in SPLITS] for source in range(2)]
    assert counts == [[350, 50, 100], [35, 5, 10]]
    found = {split: documents_in(tmp_path / "data", split) for split in SPLITS}
    for split in SPLITS:
        streams = [iter(first_documents(spec, split, 350)) for spec in specs]
        for place, document in enumerate(found[split]):
            assert document == next(streams["+" in document])
            counted = sum("+" in one for one in found[split][: place + 1])
            assert abs(counted - (place + 1) / 11) < 1  # one in eleven, everywhere

    examples = VariableAssignment(depth=0, variables=2, letters=3, largest=3)
    raw = {s: {examples.document(t) for t in examples.sample(range(3000), 0, s).tokens.tolist()} for s in SPLITS}
    assert raw["train"] == raw["test"]  # so that training would see every test document
    assert set(found["test"]) & raw["test"] == {one for one in found["test"] if "+" not in one}
    assert not any(set(found[one]) & set(found[other]) for one in SPLITS for other in SPLITS if one != other)


def test_tasks_alone_can_hold_nothing_out_and_too_few_documents_are_told(tmp_path: Path) -> None:
    how = settings(tmp_path, f"{FEW}&documents=3", validation=0, test=0)
    index = prepare(how, tmp_path / "data", workers=1)
    assert [index.documents(split) for split in SPLITS] == [3, 0, 0]
    with pytest.raises(InputError, match=r"^test=0\.01: none of the 3 documents is held out"):
        prepare(replace(how, test=0.01), tmp_path / "other", workers=1)


# Stopped and started again

MIXTURES = {
    "text and tasks": lambda folder: settings(folder, write_lines(folder / "x.jsonl", TEXTS), *TASKS, shard_bytes=1500),
    "tasks alone": lambda folder: settings(
        folder, f"{FEW}&documents=90", "task:addition?operands=2&documents=200", shard_bytes=400
    ),
}


@pytest.mark.parametrize("kind", MIXTURES)
def test_stopped_after_every_shard_it_ends_with_the_same_bytes(kind: str, tmp_path: Path) -> None:
    how = MIXTURES[kind](tmp_path)
    prepare(how, tmp_path / "unbroken", workers=1)
    unbroken = contents(tmp_path / "unbroken")
    sessions = 0
    while not (tmp_path / "data" / "index.json").exists():
        sessions += 1
        left = 2  # shards that this session gets to write

        def stop(progress: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise KeyboardInterrupt

        try:
            prepare(how, tmp_path / "data", workers=1, report=stop)
        except KeyboardInterrupt:
            assert (tmp_path / "data" / "unfinished.json").exists()
    assert sessions > 3
    assert contents(tmp_path / "data") == unbroken


@pytest.mark.slow
@pytest.mark.parametrize("kind", MIXTURES)
def test_the_bytes_do_not_depend_on_the_number_of_workers(kind: str, tmp_path: Path) -> None:
    how = MIXTURES[kind](tmp_path)
    for workers in (1, 2, 5):
        prepare(how, tmp_path / str(workers), workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "5")


def unfinish(directory: Path) -> None:
    (directory / "index.json").rename(directory / "unfinished.json")


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("sources", "told"),
    [
        (("x.jsonl", TASKS[0]), r"tasks=\('task:assignment.*, now \('task:assignment"),
        (("x.jsonl", TASKS[1], TASKS[0]), r"tasks=\('task:assignment.*, now \('task:addition"),
        (
            ("x.jsonl", TASKS[0].replace("0.2", "0.25"), TASKS[1]),
            r"tasks=\('task:.*&share=0\.2',.*, now .*&share=0\.25'",
        ),
        (("x.jsonl", TASKS[0].replace("shots=1", "shots=2"), TASKS[1]), r"tasks=\('task:.*&shots=1.*, now .*&shots=2"),
        (("x.jsonl",), r"tasks=\('task:.*, now \(\)"),
        ((TASKS[0], "x.jsonl", TASKS[1]), r"source=x\.jsonl task:.*, and what was read of it has changed since"),
        (("x.jsonl", "x.jsonl", *TASKS), r"source=x\.jsonl task:.*, and what was read of it has changed since"),
        (("y.jsonl", *TASKS), r"source=x\.jsonl task:.*, and what was read of it has changed since"),
    ],
)
def test_another_mixture_in_the_same_directory_is_refused(
    sources: tuple[str, ...], told: str, finished: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "x.jsonl", TEXTS)
    write_lines(tmp_path / "y.jsonl", TEXTS[1:])
    how = settings(tmp_path, "x.jsonl", *TASKS)
    prepare(how, tmp_path / "data", workers=1)
    if not finished:
        unfinish(tmp_path / "data")
    before = contents(tmp_path / "data")
    with pytest.raises(InputError, match=f"data was begun with {told}"):
        prepare(replace(how, source=sources), tmp_path / "data", workers=1)
    assert contents(tmp_path / "data") == before
    shuffled = "task:assignment?share=0.20&shots=1&depth=1"
    prepare(replace(how, source=("x.jsonl", shuffled, TASKS[1])), tmp_path / "data", workers=1)  # is the same


@pytest.mark.parametrize("beside_text", [True, False])
def test_a_task_that_draws_otherwise_than_it_did_is_refused(beside_text: bool, tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    table.write_text(json.dumps([[0, 1], [1, 0]]))
    task = f"task:group?group={table}&n=4&"
    text = write_lines(tmp_path / "x.jsonl", TEXTS)
    sources = (text, f"{task}share=0.1") if beside_text else (f"{task}documents=20",)
    how = settings(tmp_path, *sources, shard_bytes=100)
    prepare(how, tmp_path / "data", workers=1)
    for finished in (True, False):
        table.write_text(json.dumps([[1, 0], [0, 1]]))
        with pytest.raises(InputError, match="and what was read of it has changed since"):
            prepare(how, tmp_path / "data", workers=1)
        if finished:
            unfinish(tmp_path / "data")
    table.write_text(json.dumps([[0, 1], [1, 0]]))
    prepare(how, tmp_path / "data", workers=1)


def test_the_fingerprint_tells_mixtures_apart(tmp_path: Path) -> None:
    mixtures = [(), TASKS, TASKS[:1], TASKS[::-1], (TASKS[0].replace("0.2", "0.201"), TASKS[1])]
    text = write_lines(tmp_path / "x.jsonl", TEXTS)
    fingerprints = [
        prepare(settings(tmp_path, text, *tasks), tmp_path / str(n), workers=1).fingerprint
        for n, tasks in enumerate(mixtures)
    ]
    assert len(set(fingerprints)) == len(fingerprints)
    moved = write_lines(tmp_path / "moved" / "y.jsonl", TEXTS)
    again = prepare(settings(tmp_path, moved, *TASKS), tmp_path / "again", workers=1)
    assert again.fingerprint == fingerprints[1]


@pytest.mark.parametrize(
    ("sources", "told"),
    [
        (("x.jsonl", "task:phop"), "source task:phop: how much of it? Beside text, allowed is a share of the tokens"),
        (("x.jsonl", "task:phop?documents=3"), "how much of it? Beside text, allowed is a share"),
        (("x.jsonl", "task:phop?documents=3&share=0.1"), "how much of it? Beside text, allowed is a share"),
        (("task:phop",), "source task:phop: how much of it? Without text, allowed is a number, such as documents="),
        (("task:phop?share=0.5",), "how much of it? Without text, allowed is a number"),
        (("task:phop?share=0.5&documents=3",), "how much of it? Without text, allowed is a number"),
        (("x.jsonl", "task:phop?share=0.5", "task:igsm?share=0.5"), "add up to 1; allowed is less than 1"),
        (("x.jsonl", "task:phop?share=0.1", "task:phop?share=0.2&p=16"), "p=16: the same task twice; allowed is once"),
        (("task:phop?n=1000000000&p=1&documents=1",), "would take about 64.0 GB of memory"),
        ((), "source: none given; allowed are files, folders, globs, hf:NAME and task:NAME"),
    ],
)
def test_what_cannot_be_mixed_is_refused_before_anything_is_written(
    sources: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("loopt.limits.machine_memory", lambda: 10**10)
    write_lines(tmp_path / "x.jsonl", TEXTS)
    with pytest.raises(InputError) as refusal:
        prepare(Settings(sources, settings(tmp_path).tokenizer), tmp_path / "data", workers=1)
    assert told in str(refusal.value)
    assert not (tmp_path / "data").exists()
