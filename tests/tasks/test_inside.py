"""Intermediate values are those of the definition, and an example is drawn as it is."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest

from loopt.tasks import IGNORE, IGSM, Addition, GroupComposition, PHop, Task, VariableAssignment, inside
from loopt.tasks.groups import group

TASKS: list[Task] = [
    PHop(p=(3,), n=16),
    PHop(p=(1, 2, 4), n=16, supervision="every"),
    Addition(operands=(2, 3), digits=2, test_operands=(2,)),
    Addition(operands=(3,), digits=2, test_operands=(3,), supervision="every", room=4),
    GroupComposition(group="S3", n=7),
    GroupComposition(group="S3", n=7, supervision="every"),
    IGSM(modulus=5),
    IGSM(modulus=3, law="even", statements=3, needed=(1, 3), supervision="every"),
    VariableAssignment(depth=1, variables=3, letters=8, largest=4, shots=2),
]


def rows_of(task: Task, count: int = 20) -> list[list[int]]:
    rows: list[list[int]] = task.sample(range(count), 0, "test").tokens.tolist()
    return rows


def test_the_examples_in_the_docstring_hold() -> None:
    assert doctest.testmod(inside, extraglobs={"PHop": PHop}).failed == 0


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_what_is_asked_is_what_is_trained(task: Task) -> None:
    batch = task.sample(range(20), 0, "test")
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        assert inside.asked(task, tokens) == targets


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_every_quantity_has_a_place_for_each_token(task: Task) -> None:
    for tokens in rows_of(task, 5):
        found = inside.quantities(task, tokens)
        assert found
        assert {len(labels) for labels in found.values()} == {len(tokens)}
        assert all(label == IGNORE or 0 <= label < 200 for labels in found.values() for label in labels)


def test_each_hop_is_the_answer_for_fewer_hops() -> None:
    task = PHop(p=(4,), n=24, alphabet=3)
    for tokens in rows_of(task):
        found = inside.quantities(task, tokens)
        assert found["hop 0"] == tokens
        for p in (1, 2, 3, 4):
            assert found[f"hop {p}"] == replace(task, p=(p,)).solve(tokens)
        drawn = inside.structure(task, tokens)
        stop = len(tokens) - 1
        for _ in range(drawn["p"]):
            stop = drawn["hop"][stop]
        assert tokens[stop] == task.solve(tokens)[-1]


def test_a_sum_on_paper_adds_up() -> None:
    task = Addition(operands=(3,), digits=3, test_operands=(3,))
    for tokens in rows_of(task):
        drawn = inside.structure(task, tokens)
        numbers = [int("".join(str(tokens[place]) for place in operand)) for operand in drawn["operands"]]
        assert drawn["sum"] == [int(digit) for digit in str(sum(numbers))]
        solved = task.solve(tokens)
        assert [solved[place] for place in drawn["places"]] == drawn["sum"]
        for column, carry in enumerate(reversed(drawn["carries"])):
            assert carry == sum(number % 10**column for number in numbers) // 10**column


def test_partial_products_multiply_up_to_the_answer() -> None:
    task = GroupComposition(group="S3", n=11)
    table = group("S3")
    for tokens in rows_of(task):
        found = inside.quantities(task, tokens)
        for i in range(len(tokens)):
            assert found["product so far"][i] == table.product(*tokens[: i + 1])
            for length in (2, 4, 8):
                label = found[f"product of the last {length}"][i]
                assert label == (table.product(*tokens[i + 1 - length : i + 1]) if i + 1 >= length else IGNORE)
        for level in inside.structure(task, tokens)["levels"]:
            assert [span[0] for span in level] == [0, *(span[1] + 1 for span in level[:-1])]
            assert all(element == table.product(*tokens[a : b + 1]) for a, b, element in level)


def test_values_of_parameters_lead_to_the_answer() -> None:
    task = IGSM(modulus=7)
    for tokens in rows_of(task):
        drawn = inside.structure(task, tokens)
        values = {node["name"]: node["value"] for node in drawn["nodes"]}
        assert values[drawn["query"]] == int(task.vocabulary[task.solve(tokens)[-1]])
        needed = {node["name"] for node in drawn["nodes"] if node["needed"]}
        assert drawn["query"] in needed
        labels = inside.quantities(task, tokens)["value named here"]
        for node in drawn["nodes"]:
            assert not node["needed"] or set(node["uses"]) <= needed
            if node["place"] >= 0 and node["name"] != drawn["query"]:
                assert labels[node["place"]] == node["value"]
