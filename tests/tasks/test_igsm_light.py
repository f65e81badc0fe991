from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings

import igsm_reference
from igsm_reading import check_labels_so_far, depths, light_tasks, names_in, operations_of, right_sides, seeds, text_of
from loopt.random_bits import Stream
from loopt.tasks import IGSM
from loopt.tasks.igsm_light import size_chances
from loopt.tasks.igsm_text import ENTITIES

SOFT = IGSM(levels=(2, 4))


def read(task: IGSM, tokens: list[int]) -> tuple[dict[str, str], list[str]]:
    """Returns right sides, and the needed parameters, each after those that it uses."""
    definitions, query = right_sides(text_of(task, tokens))
    return definitions, list(depths({name: names_in(right) for name, right in definitions.items()}, query))


def operations_in(definitions: dict[str, str], needed: Iterable[str]) -> int:
    return sum(operations_of(definitions[name]) for name in needed)


@pytest.mark.slow
@given(task=light_tasks(), seed=seeds)
@settings(max_examples=40, deadline=None)
def test_needed_statements_are_one_chain_whose_links_are_written_first(task: IGSM, seed: int) -> None:
    for tokens in task.sample(range(8), seed, "train").tokens.tolist():
        definitions, needed = read(task, tokens)
        assert 1 <= len(needed) <= operations_in(definitions, needed) <= task.operations
        assert len(definitions) <= task.edges
        assert "#" not in definitions[needed[0]]
        for before, name in pairwise(needed):
            assert names_in(definitions[name])[0] == before


@pytest.mark.slow
@given(task=light_tasks(), seed=seeds)
@settings(max_examples=40, deadline=None)
def test_every_entity_below_another_level_has_an_edge_from_above(task: IGSM, seed: int) -> None:
    problem = task._law.draw(torch.arange(20), Stream(task.name, seed, "train"), task.modulus)
    sizes = problem.statements[:, 0].tolist()
    for upper, lower, statements in zip(problem.upper.tolist(), problem.lower.tolist(), sizes, strict=True):
        edges = list(zip(upper, lower, strict=True))[:statements]
        assert len(set(edges)) == statements
        assert all(0 <= above < 16 and below // 4 == above // 4 + 1 < 4 for above, below in edges)
        levels = sorted({entity // 4 for edge in edges for entity in edge})
        assert levels == list(range(levels[0], levels[-1] + 1))
        assert task.levels[0] <= len(levels) <= task.levels[1]
        below_another = {above for above, _ in edges if above // 4 > levels[0]}
        assert below_another <= {below for _, below in edges}


@given(task=light_tasks())
@settings(max_examples=30, deadline=None)
def test_every_number_of_operations_can_be_drawn(task: IGSM) -> None:
    chances = size_chances(task.operations, task.edges, task.levels)
    assert len(chances) == task.operations
    for operations, sizes in enumerate(chances, start=1):
        assert sum(sizes.values()) == pytest.approx(1)
        for needed, statements, levels, fewest, most in sizes:
            assert 1 <= needed <= min(operations, statements)
            assert task.levels[0] <= levels <= task.levels[1]
            assert (levels - 1) * fewest <= statements <= min(task.edges, (levels - 1) * most**2)


def test_sizes_are_what_counting_all_draws_gives() -> None:
    """Every draw of three operations, five edges and two levels, weighed and sorted by the operations that result."""
    found: dict[int, Counter[Any]] = defaultdict(Counter)
    soft = {s: [2.718281828459045 ** -(((s - 1) / 4 - center) ** 2) for center in (0.2, 0.5, 0.8)] for s in (1, 2, 3)}
    for one, other in product((1, 2, 3), repeat=2):
        s = min(one, other)
        for a, b in product(range(1, s + 1), repeat=2):
            for drawn in range(max(a, b), s + 1):
                for v, w in product((2, 3, 4), repeat=2):
                    low, high = min(v, w), max(v, w)
                    for x, y in product(range(low, 6), repeat=2):
                        statements = min(x, y, high**2)
                        needed = min(drawn, statements)
                        operations = s if needed > 2 or s == needed else needed  # three terms need three statements
                        chance = soft[s][v - 2] * soft[s][w - 2] / sum(soft[s]) ** 2
                        chance /= s**2 * (s - max(a, b) + 1) * (6 - low) ** 2
                        found[operations][needed, statements, 2, low, high] += chance
    chances = size_chances(3, 5, (2, 2))
    for operations in (1, 2, 3):
        total = sum(found[operations].values())
        expected = {size: chance / total for size, chance in found[operations].items()}
        assert chances[operations - 1] == pytest.approx(expected)


@pytest.mark.parametrize("task", [IGSM(), SOFT, IGSM(modulus=3, operations=4, edges=6, levels=(2, 2))], ids=str)
def test_operations_are_the_smaller_of_two_draws(task: IGSM) -> None:
    rows, most = 1500, task.operations
    found: Counter[int] = Counter()
    for tokens in task.sample(range(rows), 0, "train").tokens.tolist():
        found[operations_in(*read(task, tokens))] += 1
    expected = {k: rows * (2 * (most - k) + 1) / most**2 for k in range(1, most + 1)}
    assert sum((found[k] - n) ** 2 / n for k, n in expected.items()) < most - 1 + 4 * (2 * (most - 1)) ** 0.5
    assert set(found) <= set(expected)


def statistics_of(texts: Iterable[str]) -> dict[str, Counter[Any]]:
    """Counts what can be told apart in the text of problems."""
    counts: dict[str, Counter[Any]] = defaultdict(Counter)
    for text in texts:
        definitions, query = right_sides(text)
        uses = {name: names_in(right) for name, right in definitions.items()}
        needed = list(depths(uses, query))
        form = {name: re.sub(r"\d+", "c", re.sub("[A-P]#[A-P]", "x", right)) for name, right in definitions.items()}
        letters = sorted({entity for name in definitions for entity in name.split("#")})
        by_level = tuple(sum(ENTITIES.index(letter) // 4 == level for letter in letters) for level in range(4))
        operations = operations_in(definitions, needed)
        counts["operations and needed"][operations, len(needed)] += 1
        counts["operations and statements"][operations, len(definitions)] += 1
        counts["needed and statements"][len(needed), len(definitions)] += 1
        counts["entities of each level"][by_level] += 1
        counts["edges of an entity"].update(Counter(Counter(name[2] for name in definitions).values()))
        counts["letters"].update(letters)
        counts["place of the query"][list(definitions).index(query), len(definitions)] += 1
        counts["further operations"][tuple(operations_of(definitions[name]) for name in needed[-4:])] += 1
        for i, name in enumerate(needed):
            counts["forms of needed by place"][min(i, 5), form[name]] += 1
            counts["how far back"].update(i - needed.index(used) for used in uses[name][1:])
            counts["second and third"].update([uses[name][1] in needed[:1]] if len(uses[name]) > 2 and i == 3 else [])
        for name in definitions.keys() - set(needed):
            used = sum(one in needed for one in uses[name])
            counts["forms of distractors"][form[name], used, len(needed) > 2] += 1
        numbers = re.findall(r"(\d+)([*]?)", " ".join(definitions.values()))
        counts["constants and factors"].update(numbers)
    return counts


def surprise(ours: Counter[Any], theirs: Counter[Any]) -> float:
    """Returns how far two counts are from one distribution, in standard deviations of chi squared; cells that are
    nearly empty count as one."""
    cells: Counter[Any] = Counter()
    other: Counter[Any] = Counter()
    for cell in ours.keys() | theirs.keys():
        common = cell if ours[cell] + theirs[cell] >= 20 else "rare"
        cells[common] += ours[cell]
        other[common] += theirs[cell]
    share = (ours.total() / theirs.total()) ** 0.5
    terms = [(cells[c] / share - other[c] * share) ** 2 / (cells[c] + other[c]) for c in cells if cells[c] + other[c]]
    freedom = max(1, len(terms) - 1)
    return (sum(terms) - freedom) / (2 * freedom) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("task", [IGSM(), SOFT, IGSM(operations=7, edges=7, levels=(2, 2))], ids=str)
def test_problems_are_distributed_as_the_definition_has_them(task: IGSM) -> None:
    rows, rng = 2500, random.Random(0)
    ours = statistics_of(text_of(task, tokens) for tokens in task.sample(range(rows), 0, "train").tokens.tolist())
    theirs = statistics_of(igsm_reference.draw_text(task, rng) for _ in range(rows))
    assert ours.keys() == theirs.keys()
    found = {name: surprise(ours[name], theirs[name]) for name in ours}
    assert all(value < 5 for value in found.values()), found


@pytest.mark.slow
@given(task=light_tasks(), seed=seeds)
@settings(max_examples=20, deadline=None)
def test_a_difficulty_is_a_number_of_operations(task: IGSM, seed: int) -> None:
    names = ["1 operation", *(f"{k} operations" for k in range(2, task.operations + 1))]
    assert list(task.difficulties) == names
    for k, one in enumerate(task.difficulties.values(), start=1):
        for tokens in one.sample(range(4), seed, "test").tokens.tolist():
            assert operations_in(*read(task, tokens)) == k


def test_forms_of_statements() -> None:
    task = IGSM()
    forms: Counter[str] = Counter()
    factors: set[str] = set()
    for tokens in task.sample(range(2000), 0, "train").tokens.tolist():
        for right in right_sides(text_of(task, tokens))[0].values():
            forms[re.sub(r"\d", "c", re.sub("[A-P]#[A-P]", "x", right))] += 1
            factors |= set(re.findall(r"(\d)\*", right))
    sums = ["x", "x+x", "x-x", "x+x+x"]
    products = ["c*x", "c*(x+x)", "c*(x-x)", "c*(x+x+x)"]
    assert set(forms) == {"c", *sums, "x+x+x+x", *products, *(f"c+{right}" for right in sums)}
    assert factors == set("123456")


@pytest.mark.slow
def test_statements_left_out_for_want_of_room_are_few_and_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    task = IGSM()
    assert task.length == 224
    written = [text_of(task, tokens).count(".") for tokens in task.sample(range(4000), 0, "test").tokens.tolist()]
    drawn = task._law.draw(torch.arange(4000), Stream(task.name, 0, "test"), 7).statements[:, 0].tolist()
    assert 0 < sum(a < b for a, b in zip(written, drawn, strict=True)) < 12
    every = IGSM(supervision="every").sample(range(4000), 0, "test")
    for i in [i for i, (a, b) in enumerate(zip(written, drawn, strict=True)) if a < b][:8]:
        check_labels_so_far(task, every.tokens[i].tolist(), every.targets[i].tolist())

    cramped = IGSM(operations=15, edges=48)
    monkeypatch.setattr("loopt.tasks.igsm_light.ROOM", 0)  # room for what is needed alone
    assert cramped.length == 15 * 12 - 8 + 4
    for k, one in enumerate(cramped.difficulties.values(), start=1):
        for tokens in one.sample(range(40), 0, "test").tokens.tolist():
            assert operations_in(*read(cramped, tokens)) == k


def test_the_longest_needed_part_fills_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopt.tasks.igsm_light.ROOM", 0)
    for operations in (1, 2, 3, 4):
        task = IGSM(operations=operations, edges=16, levels=(2, 2))
        *_, hardest = task.difficulties.values()
        found = [read(task, tokens) for tokens in hardest.sample(range(3000), 0, "train").tokens.tolist()]
        tokens_of = [sum(5 + len(definitions[name]) for name in needed) for definitions, needed in found]
        assert max(tokens_of) == task.length - 4


def test_answers_are_0_more_often_than_others() -> None:
    """No constant is added where an answer would always be 0, unlike in the law "even"."""
    rows = 10_000
    shares = torch.bincount(IGSM().sample(range(rows), 0, "train").answers[:, -1], minlength=7) / rows
    assert 0.174 < shares[0] < 0.194
    assert ((shares[1:] - (1 - shares[0]) / 6).abs() < 0.012).all()
