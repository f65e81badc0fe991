"""The documents of a task are its own splits' examples, from any place on, and no two splits share one."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from loopt import tasks
from loopt.errors import InputError
from loopt.source import SPLITS, Split
from loopt.tasks import Task, VariableAssignment
from loopt.text.task_documents import TaskDocuments
from loopt.text.text_files import Document

FEW = VariableAssignment(depth=0, variables=2, letters=3, largest=3)
"""A task with 72 different examples."""


def first(task: Task, split: Split, count: int, start: int = 0) -> list[Document]:
    return list(islice(TaskDocuments(task, split).documents(start), count))


def drawn(task: Task, split: Split, count: int) -> list[str]:
    return [task.document(tokens) for tokens in task.sample(range(count), 0, split).tokens.tolist()]


@pytest.mark.parametrize(
    "task", [*map(tasks.get, tasks.names()), VariableAssignment(shots=5, rendering="code")], ids=str
)
@pytest.mark.parametrize("split", SPLITS)
def test_documents_are_examples_of_the_split_in_their_order_and_most_are_for_training(task: Task, split: Split) -> None:
    found = first(task, split, 12)
    examples = drawn(task, split, found[-1].next)
    assert [examples[document.next - 1] for document in found] == [document.text for document in found]
    indices = [document.next for document in found]
    assert indices == sorted(indices)
    assert indices[-1] < 30 if split == "train" else indices[-1] > 60  # 7 in 8, and 1 in 16


@pytest.mark.parametrize("split", SPLITS)
def test_documents_from_every_place_on(split: Split) -> None:
    task = VariableAssignment(depth=1, shots=1)
    found = first(task, split, 20)
    for number, document in enumerate(found[:-1], 1):
        assert first(task, split, 20 - number, start=document.next) == found[number:]


def test_no_document_is_in_two_splits_where_all_are_drawn_in_each() -> None:
    everything = [set(drawn(FEW, split, 2000)) for split in SPLITS]
    assert everything[0] == everything[1] == everything[2]
    assert len(everything[0]) == 72
    kept = [{document.text for document in first(FEW, split, 1000)} for split in SPLITS]
    assert set.union(*kept) == everything[0]
    assert sum(map(len, kept)) == 72
    assert all(kept)


def test_too_few_different_examples_are_refused() -> None:
    fewest = VariableAssignment(depth=0, variables=2, letters=2, largest=2)  # of 8 examples, none is for test
    assert first(fewest, "train", 1)
    with pytest.raises(
        InputError, match=r"^source task:assignment\?depth=0&.*: none of 4096 examples in a row is a test"
    ):
        TaskDocuments(fewest, "test")


def test_the_version_tells_settings_splits_and_what_is_drawn_apart(tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    table.write_text(json.dumps([[0, 1], [1, 0]]))
    group = tasks.get("group", group=str(table), n=4)
    versions = [TaskDocuments(group, split).version for split in SPLITS]
    assert TaskDocuments(group, "train").version == versions[0]
    table.write_text(json.dumps([[1, 0], [0, 1]]))
    versions.append(TaskDocuments(tasks.get("group", group=str(table), n=4), "train").version)
    versions.append(TaskDocuments(tasks.get("group", group=str(table), n=6), "train").version)
    assert len(set(versions)) == 5
