from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings

from igsm_reading import check_labels_so_far, depths, even_tasks, seeds, text_of, uses_by_name
from loopt.source import Split
from loopt.tasks import IGNORE, IGSM, igsm_even

EVEN = IGSM(law="even")

# As the sampler drew them before the law had a name: train examples of seed 3.
BEFORE = {
    0: (
        "G#J := D#E + K#O + L#O. L#M := 0. A#F := 5 * (B#G - L#O). J#P := 0 + L#O + A#F. D#E := L#O + K#O + B#G. "
        "B#G := 0. G#K := 6 * (J#P + B#G). F#J := C#F. C#F := K#O. J#O := L#M. L#O := 3 * B#G. "
        "K#O := 3 + G#K + J#P + B#G. C#F?"
    ),
    4_000_000: (
        "I#M := 6. I#P := 5 * E#I. G#L := A#E. L#N := E#I. H#L := 3 * (L#N + J#N + G#L). G#J := J#N. B#E := 6. "
        "J#P := J#N - B#E. J#N := B#E + C#E. C#E := B#E. E#I := 2 * A#E. A#E := 5. I#P?"
    ),
    2**60: (
        "I#P := 0. G#J := H#J. K#P := E#J + F#K + F#I. B#F := H#J + E#J + I#P. E#J := 1 + C#F - H#J. C#F := I#P + H#J. "
        "F#K := C#F + E#J + H#J. H#J := 2 + I#P. F#I := 0 + G#J - I#N. D#F := H#I. I#N := C#F + E#J + H#J. H#I := 5. "
        "E#J?"
    ),
}


def test_problems_are_what_they_were() -> None:
    for index, text in BEFORE.items():
        assert EVEN.sample(range(index, index + 1), 3, "train").tokens[0].tolist() == EVEN.encode(text)


@pytest.mark.parametrize(
    ("task", "examples", "seed", "split", "sha256"),
    [
        (IGSM(law="even", supervision="every"), 2000, 0, "train", "865a186537870f0a"),
        (EVEN, 2000, 7, "test", "4b44ee40b77ff536"),
        (IGSM(law="even", modulus=3, statements=3, needed=(2, 3)), 2000, 0, "train", "e47f28cdbd4c62b1"),
        (
            IGSM(law="even", modulus=23, statements=20, needed=(5, 17), supervision="every"),
            *(500, -3, "validation", "7df08ebea00eb892"),
        ),
        (EVEN.difficulties["8 needed"], 300, 0, "test", "5db65ed729eae005"),
    ],
    ids=str,
)
def test_batches_are_what_they_were(task: IGSM, examples: int, seed: int, split: Split, sha256: str) -> None:
    batch = task.sample(range(examples), seed, split)
    values = torch.stack([batch.tokens, batch.targets, batch.answers]).flatten().tolist()
    digest = hashlib.sha256(b"".join(value.to_bytes(8, "little", signed=True) for value in values))
    assert digest.hexdigest()[:16] == sha256


def test_labels_so_far_are_as_many_as_documented_also_where_statements_are_left_out() -> None:
    task = IGSM(law="even", supervision="every")
    batch = task.sample(range(20_000), 0, "test")
    asked = batch.targets != IGNORE
    assert asked.sum() / 20_000 == pytest.approx(12.4, abs=0.1)
    statements = (batch.tokens == task.vocabulary.index(".")).sum(1)
    short = (statements < 12).nonzero()[:, 0].tolist()
    assert short
    for i in short:
        check_labels_so_far(task, batch.tokens[i].tolist(), batch.targets[i].tolist())


@pytest.mark.slow
@given(task=even_tasks(), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_statements_are_as_many_as_asked_for(task: IGSM, seed: int) -> None:
    for tokens in task.sample(range(8), seed, "train").tokens.tolist():
        uses, query = uses_by_name(task, tokens)
        assert len(uses) <= task.statements
        assert task.needed[0] <= len(depths(uses, query)) <= task.needed[1]
        assert all(len(used) <= 3 for used in uses.values())


@pytest.mark.slow
@given(task=even_tasks(), seed=seeds)
@settings(max_examples=20, deadline=None)
def test_a_difficulty_is_a_number_of_needed_statements(task: IGSM, seed: int) -> None:
    fewest, most = task.needed
    assert list(task.difficulties) == [f"{m} needed" for m in range(fewest, most + 1)]
    for m, one in enumerate(task.difficulties.values(), start=fewest):
        for tokens in one.sample(range(4), seed, "test").tokens.tolist():
            assert len(depths(*uses_by_name(task, tokens))) == m


def test_forms_of_statements() -> None:
    task = EVEN
    forms: Counter[str] = Counter()
    for tokens in task.sample(range(2000), 0, "train").tokens.tolist():
        text = text_of(task, tokens)
        for statement in re.split(r" \. ", text)[:-1]:
            right = re.sub("[A-P] # [A-P]", "x", statement.split(" := ")[1])
            forms[re.sub("[2-6]", "c", right) if "*" in right else re.sub("[0-6]", "c", right)] += 1
    sums = ["x", "x + x", "x - x", "x + x + x"]
    products = ["c * x", "c * ( x + x )", "c * ( x - x )", "c * ( x + x + x )"]
    assert set(forms) == {"c", *sums, *products, *(f"c + {right}" for right in sums)}


@pytest.mark.slow
def test_statements_left_out_for_want_of_room_are_few_and_not_needed() -> None:
    task = EVEN
    assert task.length == 176
    counts = Counter(
        len(uses_by_name(task, tokens)[0]) for tokens in task.sample(range(4000), 0, "test").tokens.tolist()
    )
    assert counts[12] > 3960

    cramped = IGSM(law="even", statements=40, needed=(35, 35))
    for tokens in cramped.sample(range(200), 0, "test").tokens.tolist():
        assert len(depths(*uses_by_name(cramped, tokens))) == 35
    assert IGSM(law="even", statements=12, needed=(12, 12)).length == 216


def test_tightest_problem_fills_its_length() -> None:
    task = IGSM(law="even", statements=4, needed=(4, 4))
    padding = (task.sample(range(30_000), 0, "train").tokens == len(task.vocabulary) - 1).sum(1)
    assert padding.min() == 0


@pytest.mark.slow
def test_needed_and_distractors_are_as_documented() -> None:
    task = EVEN
    rows = 4000
    needed: Counter[int] = Counter()
    deep: Counter[int] = Counter()
    for tokens in task.sample(range(rows), 0, "train").tokens.tolist():
        found = depths(*uses_by_name(task, tokens))
        needed[len(found)] += 1
        deep[len(found)] += max(found.values())
    assert set(needed) == set(range(1, 11))
    assert all(abs(count - rows / 10) < 5 * (rows / 10) ** 0.5 for count in needed.values())
    mean_depth = {count: deep[count] / needed[count] for count in needed}
    assert mean_depth[1] == 1
    assert mean_depth[2] == 2
    assert all(mean_depth[count] > mean_depth[count - 1] + 0.4 for count in range(2, 11))
    assert 8.8 < mean_depth[10] < 9.4


@pytest.mark.slow
@pytest.mark.parametrize("needed", [1, 3, 10])
def test_answers_are_balanced_however_many_statements_are_needed(needed: int) -> None:
    rows = 30_000
    answers = IGSM(law="even", needed=(needed, needed)).sample(range(rows), 0, "train").answers[:, -1]
    counts = torch.bincount(answers, minlength=7)
    assert ((counts - rows / 7).abs() < 5 * (rows / 7) ** 0.5).all()


@pytest.mark.slow
def test_every_answer_depends_on_a_constant() -> None:
    """With other constants, factors aside, the same problem has other answers."""
    task = EVEN
    numbers = random.Random(0)
    for tokens in task.sample(range(200), 0, "train").tokens.tolist():
        text = text_of(task, tokens)
        changed = [re.sub(r"\d(?! \*)", lambda _: str(numbers.randrange(7)), text) for _ in range(12)]
        assert len({task.solve(task.encode(other))[-1] for other in changed}) > 1


def test_what_would_always_be_zero_gets_a_constant() -> None:
    """x - y with y := x becomes x - y with y := c + x."""
    task = IGSM(law="even", statements=3, needed=(3, 3))
    shapes: Counter[frozenset[str]] = Counter()
    for tokens in task.sample(range(3000), 0, "train").tokens.tolist():
        *statements, _ = text_of(task, tokens).replace(" ", "").split(".")
        constants = [statement[:3] for statement in statements if "#" not in statement[5:]]
        if len(constants) == 1:
            right_sides = [statement[5:].replace(constants[0], "x") for statement in statements]
            shapes[frozenset(re.sub("[A-P]#[A-P]", "y", re.sub("[0-6]", "c", right)) for right in right_sides)] += 1
    assert shapes[frozenset({"c", "c+x-y", "x"})] > 0
    for difference in ("x-y", "y-x"):
        assert shapes[frozenset({"c", difference, "x"})] == 0
        assert shapes[frozenset({"c", difference, "c+x"})] > 3 * shapes[frozenset({"c", difference, "c*x"})] > 0


def test_operands_come_in_every_order() -> None:
    places = torch.tensor([[[5, 6, 7]]]).expand(6, 1, 3)
    which = torch.arange(6)[:, None]
    for count, orders in ((3, set(permutations((5, 6, 7)))), (2, {(5, 6, 7), (6, 5, 7)}), (1, {(5, 6, 7)})):
        shuffled = igsm_even._shuffled(places, torch.full((6, 1), count), which)
        found = Counter(map(tuple, shuffled[:, 0].tolist()))
        assert set(found) == orders
        assert len(set(found.values())) == 1


@pytest.mark.slow
def test_every_edge_and_every_place_is_used_evenly() -> None:
    task = EVEN
    rows = 4000
    defined: Counter[str] = Counter()
    place_of_query: Counter[int] = Counter()
    for tokens in task.sample(range(rows), 0, "train").tokens.tolist():
        uses, query = uses_by_name(task, tokens)
        defined.update(uses.keys())
        if len(uses) == task.statements:
            place_of_query[list(uses).index(query)] += 1
    for counts, kinds in ((defined, 48), (place_of_query, 12)):
        assert len(counts) == kinds
        expected = sum(counts.values()) / kinds
        assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())
