from __future__ import annotations

import doctest
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopt.errors import InputError
from loopt.tasks import groups
from loopt.tasks.groups import Group, group

ORDERS = {
    "Z2": 2,
    "Z7": 7,
    "C7": 7,
    "Z100": 100,
    "S2": 2,
    "S3": 6,
    "S4": 24,
    "S5": 120,
    "A3": 3,
    "A4": 12,
    "A5": 60,
    "D3": 6,
    "D4": 8,
    "D7": 14,
    "Z2xZ3": 6,
    "Z2xZ2": 4,
    "S3xZ2": 12,
    "A4xC2xD3": 144,
}


def inverses(one: Group) -> list[int]:
    return [row.index(one.identity) for row in one.table]


def is_abelian(one: Group) -> bool:
    return list(zip(*one.table, strict=True)) == list(one.table)


def orders_of_elements(one: Group) -> Counter[int]:
    """Returns how many elements have each order: different for groups that are not isomorphic, nearly always."""
    counts: Counter[int] = Counter()
    for element in range(one.order):
        power, order = element, 1
        while power != one.identity:
            power, order = one.table[power][element], order + 1
        counts[order] += 1
    return counts


@pytest.mark.parametrize("name", ORDERS)
def test_named_groups_are_groups(name: str) -> None:
    one = group(name)
    assert one.name == name
    assert one.order == len(one.elements) == len(set(one.elements)) == ORDERS[name]
    assert one.identity == 0
    again = Group.from_table(one.table, name, one.elements)  # checks every axiom
    assert again.table == one.table
    assert Group.from_table(one.tensor()).table == one.table
    everything = set(range(one.order))
    assert all(set(row) == everything for row in one.table)
    assert all(set(column) == everything for column in zip(*one.table, strict=True))
    for x, inverse in enumerate(inverses(one)):
        assert one.table[x][inverse] == one.table[inverse][x] == 0


def test_largest_named_group() -> None:
    s6 = group("S6")
    assert s6.order == 720
    a, b = s6.elements.index("(1 2 3 4 5 6)"), s6.elements.index("(1 2)")
    assert s6.elements[s6.product(a, a, a)] == "(1 4)(2 5)(3 6)"
    assert s6.product("(1 2 3 4 5 6)", "(1 2)", "e") == s6.table[a][b]


@pytest.mark.parametrize(
    ("name", "abelian"), [("Z7", True), ("Z2xZ3", True), ("S3", False), ("A4", False), ("A5", False), ("D4", False)]
)
def test_abelian(name: str, abelian: bool) -> None:
    assert is_abelian(group(name)) == abelian


def test_permutations_compose_like_functions() -> None:
    s5 = group("S5")
    assert s5.elements[s5.product("(1 2)", "(2 3)")] == "(1 2 3)"
    assert s5.elements[s5.product("(2 3)", "(1 2)")] == "(1 3 2)"
    assert s5.elements[s5.product("(1 2 3 4 5)", "(1 2 3 4 5)")] == "(1 3 5 2 4)"
    assert s5.elements[s5.product("(1 2)(3 4)", "(1 3)(2 4)")] == "(1 4)(2 3)"
    assert s5.product() == s5.identity == s5.index("e")


def test_known_facts() -> None:
    assert orders_of_elements(group("S4")) == {1: 1, 2: 9, 3: 8, 4: 6}
    assert orders_of_elements(group("S5")) == {1: 1, 2: 25, 3: 20, 4: 30, 5: 24, 6: 20}
    assert orders_of_elements(group("A5")) == {1: 1, 2: 15, 3: 20, 5: 24}
    assert orders_of_elements(group("D4")) == {1: 1, 2: 5, 4: 2}
    assert orders_of_elements(group("Z2xZ3")) == orders_of_elements(group("Z6"))
    assert orders_of_elements(group("Z2xZ2")) != orders_of_elements(group("Z4"))
    assert orders_of_elements(group("D3")) == orders_of_elements(group("S3"))
    assert orders_of_elements(group("S3xZ2")) == orders_of_elements(group("D6"))


def commutators(one: Group, of: set[int]) -> set[int]:
    """Returns what the commutators of these elements generate."""
    inverse = inverses(one)
    found = {one.product(a, b, inverse[a], inverse[b]) for a, b in itertools.product(of, of)}
    while len(more := found | {one.table[a][b] for a in found for b in found}) > len(found):
        found = more
    return found


@pytest.mark.parametrize(("name", "solvable"), [("S3", True), ("S4", True), ("A4", True), ("A5", False), ("S5", False)])
def test_solvable_or_not(name: str, solvable: bool) -> None:
    """Whether a group is solvable decides if Theorem 5.1's problem is easy or hard for constant depth."""
    one = group(name)
    series = [set(range(one.order))]
    while len(smaller := commutators(one, series[-1])) < len(series[-1]):
        series.append(smaller)
    assert (series[-1] == {one.identity}) == solvable


def test_alternating_group_is_a_subgroup() -> None:
    a5, s5 = group("A5"), group("S5")
    inside = [s5.index(name) for name in a5.elements]
    for a, b in itertools.product(range(60), range(60)):
        assert inside[a5.table[a][b]] == s5.table[inside[a]][inside[b]]


def test_dihedral_relations() -> None:
    d4 = group("D4")
    assert d4.elements == ("e", "r", "r2", "r3", "s", "sr", "sr2", "sr3")
    assert d4.product("r", "s") == d4.product("s", "r3") == d4.index("sr3")
    assert d4.product("s", "s") == d4.product("r", "r", "r", "r") == d4.identity


def test_products_go_by_factors() -> None:
    product, left, right = group("S3xZ2"), group("S3"), group("Z2")
    assert product.elements[:3] == ("[e, 0]", "[e, 1]", "[(2 3), 0]")
    for a, b in itertools.product(range(12), range(12)):
        assert product.table[a][b] == 2 * left.table[a // 2][b // 2] + right.table[a % 2][b % 2]


def test_groups_are_made_once() -> None:
    assert group("S4") is group("S4")
    assert repr(group("S4")) == "Group(name='S4')"


def test_docstring_examples() -> None:
    assert doctest.testmod(groups).failed == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Q8", "group 'Q8' is not known; allowed are Z7 (or C7), S5, A5, D4, products such as S3xZ2, or a file"),
        ("", "group '' is not known"),
        ("Z", "group 'Z' is not known"),
        ("Z07", "group 'Z07' is not known"),
        ("s5", "group 's5' is not known"),
        ("S3x", "group 'S3x' is not known"),
        ("Z2 x Z3", "group 'Z2 x Z3' is not known"),
        (5, "group 5 is not known"),
        ("Z1", "group 'Z1': the smallest Z is Z2"),
        ("D2", "group 'D2': the smallest D is D3"),
        ("S7", "group 'S7' has more than 1000 elements"),
        ("S9999", "group 'S9999' has more than 1000 elements"),
        ("S5xZ9", "group 'S5xZ9' has more than 1000 elements"),
        ("a\0.json", "group 'a\\x00.json' is not known"),
        ("no/such/table.json", "cannot read no/such/table.json: No such file or directory"),
    ],
)
def test_bad_names(name: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        group(name)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


LOOP_OF_ORDER_5 = [[0, 1, 2, 3, 4], [1, 0, 3, 4, 2], [2, 4, 0, 1, 3], [3, 2, 4, 0, 1], [4, 3, 1, 2, 0]]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "a table is a list of one or more rows, each a list"),
        ([0], "a table is a list of one or more rows, each a list"),
        ({"table": [[0]]}, "a table is a list of one or more rows, each a list"),
        ([[0, 1], [1]], "not square: row 1 has 1 entries and there are 2 rows"),
        ([[0, 1], [1, 2]], "row 1, column 1 holds 2; allowed are integers, 0 to 1"),
        ([[0, 1], [-1, 0]], "row 1, column 0 holds -1; allowed are integers, 0 to 1"),
        ([[0, 1], [1, 0.0]], "row 1, column 1 holds 0.0; allowed are integers, 0 to 1"),
        ([[0, True], [1, 0]], "row 0, column 1 holds True; allowed are integers, 0 to 1"),
        ([[0] * 1001] * 1001, "1001 rows; at most 1000 are allowed"),
        ([[0, 0], [1, 1]], "no identity: no e has e∘x = x∘e = x for every x"),
        ([[0, 1], [1, 1]], "no inverse: no x has 1∘x = x∘1 = 0, the identity"),
        # every element is its own inverse and no row or column repeats one, and yet:
        (LOOP_OF_ORDER_5, "not associative: (1∘1)∘2 = 2 but 1∘(1∘2) = 4"),
    ],
)
def test_bad_tables(table: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table))
    for make, name in ((lambda: Group.from_table(table, "G"), "G"), (lambda: group(str(path)), str(path))):
        with pytest.raises(InputError) as error:
            make()
        assert str(error.value) == f"group {name}: {message}"


def test_identity_may_be_any_element(tmp_path: Path) -> None:
    path = tmp_path / "z3.json"
    path.write_text("[[2, 0, 1], [0, 1, 2], [1, 2, 0]]")
    one = group(str(path))
    assert (one.identity, inverses(one), one.elements) == (1, [2, 1, 0], ("0", "1", "2"))
    assert group(str(path)).product(0, 0, 0) == 1


def test_names_of_elements() -> None:
    table = [[0, 1], [1, 0]]
    assert Group.from_table(table, elements=("even", "odd")).product("odd", "odd") == 0
    for names in (("a",), ("a", "a"), ("a", "b", "c")):
        with pytest.raises(InputError, match="2 elements need as many names, all different"):
            Group.from_table(table, elements=names)
    with pytest.raises(InputError, match="group S3: no element 'f'; allowed are e, "):
        group("S3").product("f")


def test_a_file_that_is_not_json(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text("[[0, 1],\n [1")
    with pytest.raises(InputError, match=r"bad\.json: line 2, column 4: no JSON: Expecting"):
        group(str(path))
    for text in ("[" * 5000, "1" * 400, "{}", "[]", "[[NaN]]", "\x80", "[[1e400]]", f"[[{2**70}]]"):
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(InputError, match=r"bad\.json") as error:
            group(str(path))
        assert "\n" not in str(error.value)


@given(name=st.sampled_from(["Z2", "Z7", "S3", "D4", "A4", "Z2xZ3", "S4"]), data=st.data())
@settings(max_examples=150, deadline=None)
def test_one_wrong_entry_is_noticed(name: str, data: st.DataObject) -> None:
    """No two groups' tables differ in one entry only: in a group every row and column has each element once."""
    one = group(name)
    table = [list(row) for row in one.table]
    i, j = data.draw(st.tuples(*[st.integers(0, one.order - 1)] * 2))
    table[i][j] = data.draw(st.integers(0, one.order - 1).filter(lambda entry: entry != one.table[i][j]))
    with pytest.raises(InputError, match=r"^group table: (no identity|no inverse|not associative)") as error:
        Group.from_table(table)
    assert "\n" not in str(error.value)


@given(name=st.sampled_from(["Z7", "S3", "D4", "A4", "Z2xZ3", "S4"]), data=st.data())
@settings(max_examples=100, deadline=None)
def test_renumbered_elements_are_still_a_group(name: str, data: st.DataObject) -> None:
    one = group(name)
    new = data.draw(st.permutations(range(one.order)))
    old = sorted(range(one.order), key=new.__getitem__)
    renumbered = Group.from_table([[new[one.table[a][b]] for b in old] for a in old])
    assert renumbered.identity == new[one.identity]
    assert [inverses(renumbered)[new[x]] for x in range(one.order)] == [new[y] for y in inverses(one)]
    assert is_abelian(renumbered) == is_abelian(one)


@given(
    rows=st.integers(2, 5).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, n - 1), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
@settings(max_examples=200, deadline=None)
def test_a_random_table_is_a_group_only_if_all_axioms_hold(rows: list[list[int]]) -> None:
    elements = range(len(rows))
    identities = [e for e in elements if all(rows[e][x] == rows[x][e] == x for x in elements)]
    is_group = (
        all(rows[rows[a][b]][c] == rows[a][rows[b][c]] for a, b, c in itertools.product(elements, repeat=3))
        and bool(identities)
        and all(any(rows[x][y] == rows[y][x] == identities[0] for y in elements) for x in elements)
    )
    if is_group:
        assert Group.from_table(rows).identity == identities[0]
    else:
        with pytest.raises(InputError):
            Group.from_table(rows)
