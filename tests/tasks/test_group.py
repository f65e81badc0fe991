from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopt import tasks
from loopt.errors import InputError
from loopt.tasks import IGNORE, GroupComposition, group, groups

names = st.sampled_from(
    ["Z2", "Z7", "C9", "S3", "S4", "S5", "A4", "A5", "D3", "D4", "D5", "Z2xZ3", "S3xZ2", "D4xA4", "Z2xS3xZ2"]
)
compositions = st.builds(
    GroupComposition, group=names, n=st.integers(1, 70), supervision=st.sampled_from(["last", "every"])
)
seeds = st.integers(-(2**63), 2**63 - 1)


@given(
    task=compositions, seed=seeds, split=st.sampled_from(["train", "validation", "test"]), first=st.integers(0, 2**61)
)
@settings(max_examples=200, deadline=None)
def test_sampler_agrees_with_solver(task: GroupComposition, seed: int, split: Any, first: int) -> None:
    batch = task.sample(range(first, first + 4), seed, split)
    assert batch.tokens.shape == batch.targets.shape == batch.answers.shape == (4, task.length)
    for tokens, targets, answers in zip(
        batch.tokens.tolist(), batch.targets.tolist(), batch.answers.tolist(), strict=True
    ):
        labels = task.solve(tokens)
        last_only = [IGNORE] * (task.length - 1) + labels[-1:]
        assert targets == (labels if task.supervision == "every" else last_only)
        assert answers == last_only


@given(task=compositions, seed=seeds, indices=st.lists(st.integers(0, 30), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_an_example_does_not_depend_on_its_batch(task: GroupComposition, seed: int, indices: list[int]) -> None:
    whole = task.sample(range(31), seed, "train")
    some = task.sample(torch.tensor(indices), seed, "train")
    for field in ("tokens", "targets", "answers"):
        assert torch.equal(getattr(some, field), getattr(whole, field)[indices])


@pytest.mark.parametrize("name", ["Z7", "S5", "A5", "D4", "S3xZ2", "Z2xS3xZ2"])
def test_what_names_say_is_what_tables_hold(name: str) -> None:
    """The solver goes by names and the sampler by tables, and they agree on products of two."""
    task = GroupComposition(group=name, n=2)
    table = groups.group(name).table
    for g in range(len(table)):
        for h in range(0, len(table), 1 + len(table) // 40):
            assert task.solve([g, h]) == [g, table[g][h]]


@pytest.mark.parametrize(
    ("name", "word", "products"),
    [
        ("Z7", "3 5 6", "3 1 0"),
        ("S3", "(1 2);(2 3);(1 3)", "(1 2);(1 2 3);(2 3)"),
        ("S5", "(1 2 3 4 5);(1 2);(1 5 4 3 2)", "(1 2 3 4 5);(1 3 4 5);(2 3)"),
        ("D4", "r s r s", "r sr3 s e"),
        ("S3xZ2", "[(1 2), 1];[(2 3), 1]", "[(1 2), 1];[(1 2 3), 0]"),
    ],
)
def test_solver_on_cases_worked_by_hand(name: str, word: str, products: str) -> None:
    task = GroupComposition(group=name)
    separator = ";" if ";" in word else " "
    number = {element: i for i, element in enumerate(task.vocabulary)}
    assert task.solve([number[g] for g in word.split(separator)]) == [number[g] for g in products.split(separator)]


def test_elements_and_products_are_uniform() -> None:
    task = GroupComposition(group="S4", n=8, supervision="every")
    batch = task.sample(range(20_000), 0, "train")
    for drawn in (batch.tokens, batch.targets):
        counts = torch.stack([torch.bincount(column, minlength=24) for column in drawn.T]).double()
        chi_square = ((counts - 20_000 / 24) ** 2 / (20_000 / 24)).sum(1)
        assert (abs(chi_square - 23) < 6 * 46**0.5).all()


def test_all_but_one_element_say_nothing_about_the_answer() -> None:
    batch = GroupComposition(group="S3", n=5).sample(range(36_000), 0, "train")
    for position in range(5):
        both = 6 * batch.tokens[:, position] + batch.answers[:, -1]
        counts = torch.bincount(both, minlength=36).double()
        assert abs(((counts - 1000) ** 2 / 1000).sum() - 35) < 6 * 70**0.5


def test_one_element_is_its_own_product() -> None:
    batch = GroupComposition(n=1).sample(range(10), 0, "train")
    assert torch.equal(batch.tokens, batch.answers)


def test_a_group_from_a_file(tmp_path: Path) -> None:
    """The quaternions 1, -1, i, -i, j, -j, k, -k are a group that has no name here."""
    units = {("i", "j"): "k", ("j", "k"): "i", ("k", "i"): "j"}
    sign_and_unit = [(sign, unit) for unit in "1ijk" for sign in (1, -1)]

    def times(a: tuple[int, str], b: tuple[int, str]) -> tuple[int, str]:
        sign = a[0] * b[0]
        if "1" in (a[1], b[1]):
            return sign, b[1] if a[1] == "1" else a[1]
        if a[1] == b[1]:
            return -sign, "1"
        return (sign, units[a[1], b[1]]) if (a[1], b[1]) in units else (-sign, units[b[1], a[1]])

    table = [[sign_and_unit.index(times(a, b)) for b in sign_and_unit] for a in sign_and_unit]
    path = tmp_path / "quaternions.json"
    path.write_text(json.dumps(table))
    task = tasks.get("group", group=str(path), n=20, supervision="every")
    assert task.vocabulary == ("0", "1", "2", "3", "4", "5", "6", "7")
    batch = task.sample(range(50), 0, "train")
    assert batch.targets.tolist() == [task.solve(tokens) for tokens in batch.tokens.tolist()]
    assert task.solve([2, 4, 6]) == [2, 6, 1]  # i, ij = k, kk = -1
    assert task.render([2, 4, 6]).splitlines()[0].endswith("answer 1")


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "group.json"
    for order in (4, 2, 6):
        path.write_text(json.dumps([[(a + b) % order for b in range(order)] for a in range(order)]))
        batch = tasks.get("group", group=str(path), n=5, supervision="every").sample(range(20), 0, "train")
        assert torch.equal(batch.targets, batch.tokens.cumsum(1) % order)


def test_no_examples_at_all() -> None:
    assert GroupComposition(n=5).sample(range(0), 0, "train").tokens.shape == (0, 5)


def test_docstring_example() -> None:
    assert doctest.testmod(group).failed == 0


@given(task=compositions, seed=seeds)
@settings(max_examples=40, deadline=None)
def test_render_fits_a_terminal_and_names_the_answer(task: GroupComposition, seed: int) -> None:
    batch = task.sample(range(1), seed, "train")
    lines = task.render(batch.tokens[0].tolist()).splitlines()
    answer = task.vocabulary[batch.answers[0, -1]]
    assert lines[0].endswith(f"answer {answer}")
    assert lines[-1].endswith(answer)
    assert len(lines) == 3 + task.n
    assert all(len(line) <= 100 for line in lines)


def test_a_model_can_be_measured_on_words_of_several_lengths() -> None:
    task = GroupComposition(group="S3", n=8, supervision="every", test_lengths=[2, 8])  # type: ignore[arg-type]
    whole = GroupComposition(group="S3", n=8, supervision="every")
    assert task.tests == {"n=2": GroupComposition(group="S3", n=2, supervision="every"), "n=8": whole}
    assert whole.tests == {"group": whole}
    trained, alone = (one.sample(range(20), 0, "train") for one in (task, whole))
    assert torch.equal(trained.tokens, alone.tokens)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group": "Q8"}, "group 'Q8' is not known; allowed are Z7 (or C7), S5, A5, D4, products"),
        ({"group": "S7"}, "group 'S7' has more than 1000 elements"),
        ({"n": 0}, "task group: n=0; allowed are integers, 1 to 1000000000"),
        ({"n": True}, "task group: n=True; allowed are integers, 1 to 1000000000"),
        ({"supervision": "all"}, "task group: supervision='all'; allowed are last, every"),
        ({"n": 8, "test_lengths": (4, 9)}, "task group: test_lengths=9; allowed are integers, 1 to 8"),
        ({"test_lengths": (4, 4)}, "task group: test_lengths=(4, 4); allowed are different integers, each once"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        GroupComposition(**settings)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "length=0; allowed are integers, 1 to 1000000000"),
        ([0, 120], "element=120; allowed are integers, 0 to 119"),
        ([-1], "element=-1; allowed are integers, 0 to 119"),
    ],
)
def test_bad_tokens(tokens: list[int], message: str) -> None:
    for reader in (GroupComposition().solve, GroupComposition().render):
        with pytest.raises(InputError) as error:
            reader(tokens)
        assert str(error.value) == f"task group: {message}"
