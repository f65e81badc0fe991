from __future__ import annotations

import doctest
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopt.errors import InputError
from loopt.tasks import IGNORE, IGSM, igsm
from loopt.tasks.igsm_text import ENTITIES

# Table 2 of the paper, with the brackets that its own worked answer computes with.
SAMPLE = (
    "E#I := 4. E#J := E#I. K#N := I#N + J#O + F#K. F#K := E#J. J#O := F#K + K#O + E#J. H#J := E#J + F#K. "
    "I#P := L#M + I#N + K#O. I#M := J#O + J#P + F#K. J#P := H#J - F#K. L#M := I#N + J#P + F#K. "
    "I#N := 2 * (J#P + H#J + E#I). K#O := J#P + I#N + E#J. I#P?"
)


@st.composite
def tasks(draw: st.DrawFn) -> IGSM:
    statements = draw(st.integers(3, 20))
    fewest = draw(st.integers(1, statements))
    return IGSM(
        modulus=draw(st.sampled_from([3, 5, 7, 11, 23])),
        statements=statements,
        needed=(fewest, draw(st.integers(fewest, statements))),
    )


seeds = st.integers(-(2**63), 2**63 - 1)


def text_of(task: IGSM, tokens: list[int]) -> str:
    return " ".join(task.vocabulary[token] for token in tokens)


def uses_by_name(task: IGSM, tokens: list[int]) -> tuple[dict[str, list[str]], str]:
    """Returns what each parameter is defined by, and the query, from the text with regular expressions only."""
    text = text_of(task, tokens).replace(" ", "").replace("<pad>", "")
    *statements, query = text.split(".")
    uses: dict[str, list[str]] = {}
    for statement in statements:
        name, right = statement.split(":=")
        assert name not in uses
        uses[name] = re.findall("[A-P]#[A-P]", right)
    assert query.endswith("?")
    return uses, query[:-1]


def depths(uses: dict[str, list[str]], query: str) -> dict[str, int]:
    """Returns, for each parameter the query needs, the statements on its longest chain down to a constant."""
    found: dict[str, int] = {}

    def depth(name: str, above: tuple[str, ...]) -> int:
        assert name not in above
        if name not in found:
            found[name] = 1 + max((depth(used, (*above, name)) for used in uses[name]), default=0)
        return found[name]

    depth(query, ())
    return found


@pytest.mark.slow
@given(task=tasks(), seed=seeds, split=st.sampled_from(["train", "validation", "test"]), first=st.integers(0, 2**61))
@settings(max_examples=120, deadline=None)
def test_sampler_agrees_with_solver(task: IGSM, seed: int, split: Any, first: int) -> None:
    batch = task.sample(range(first, first + 8), seed, split)
    assert batch.tokens.shape == batch.targets.shape == batch.answers.shape == (8, task.length)
    for tokens, targets, answers in zip(
        batch.tokens.tolist(), batch.targets.tolist(), batch.answers.tolist(), strict=True
    ):
        assert task.solve(tokens) == targets == answers
        assert targets[:-1] == [IGNORE] * (task.length - 1)
        assert 0 <= targets[-1] < task.modulus


@pytest.mark.slow
def test_agrees_with_solver_at_the_size_of_the_paper() -> None:
    task = IGSM()
    batch = task.sample(range(2000), 0, "test")
    assert batch.answers.tolist() == [task.solve(tokens) for tokens in batch.tokens.tolist()]


def test_labels_so_far_are_as_many_as_documented_also_where_statements_are_left_out() -> None:
    task = IGSM(supervision="every")
    batch = task.sample(range(20_000), 0, "test")
    asked = batch.targets != IGNORE
    assert asked.sum() / 20_000 == pytest.approx(12.4, abs=0.1)
    statements = (batch.tokens == task.vocabulary.index(".")).sum(1)
    short = (statements < 12).nonzero()[:, 0].tolist()
    assert short
    for i in short:
        check_labels_so_far(task, batch.tokens[i].tolist(), batch.targets[i].tolist())


def check_labels_so_far(task: IGSM, tokens: list[int], targets: list[int]) -> None:
    """Compares labels with the solver's, which is asked for each parameter that a statement names, after the statements
    that are complete by then, and refuses what does not follow from them."""
    symbols = [task.vocabulary[token] for token in tokens]
    told, name, begin = "", "", symbols.count("<pad>")  # statements so far, what the present one defines, its start
    for i, symbol in enumerate(symbols[:-4]):
        query = ""
        if symbol in ENTITIES and symbols[i - 1] == "#":
            query = "".join(symbols[i - 2 : i + 1])
            if symbols[i + 1] == ":=":
                name, query = query, ""
        if symbol == ".":
            told, query = f"{told} {' '.join(symbols[begin : i + 1])}", name
            begin = i + 1
        try:
            wanted = task.solve(task.encode(f"{told} {query}?"))[-1] if query else IGNORE
        except InputError as error:
            if "is used and not defined" not in str(error):
                raise
            wanted = IGNORE
        assert targets[i] == wanted
    assert targets[-4:-1] == [IGNORE] * 3


@pytest.mark.slow
@given(task=tasks(), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_every_name_is_asked_for_what_follows_so_far(task: IGSM, seed: int) -> None:
    every, last = (replace(task, supervision=kind).sample(range(3), seed, "train") for kind in ("every", "last"))
    assert torch.equal(every.tokens, last.tokens)
    assert torch.equal(every.answers, last.answers)
    for tokens, targets in zip(every.tokens.tolist(), every.targets.tolist(), strict=True):
        check_labels_so_far(task, tokens, targets)


def test_agrees_with_python_itself() -> None:
    """Every name is replaced by its definition, and the whole is handed to eval."""
    task = IGSM()
    batch = task.sample(range(200), 1, "test")
    for tokens, answer in zip(batch.tokens.tolist(), batch.answers[:, -1].tolist(), strict=True):
        *statements, query = text_of(task, tokens).replace(" ", "").replace("<pad>", "").split(".")
        right_sides = dict(statement.split(":=") for statement in statements)
        written_out = query[:-1]
        while "#" in written_out:
            first = written_out.index("#") - 1
            written_out = (
                f"{written_out[:first]}({right_sides[written_out[first : first + 3]]}){written_out[first + 3 :]}"
            )
        assert eval(written_out) % 7 == answer


@given(task=tasks(), seed=seeds, indices=st.lists(st.integers(0, 30), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_an_example_does_not_depend_on_its_batch(task: IGSM, seed: int, indices: list[int]) -> None:
    whole = task.sample(range(31), seed, "train")
    some = task.sample(torch.tensor(indices), seed, "train")
    for field in ("tokens", "targets", "answers"):
        assert torch.equal(getattr(some, field), getattr(whole, field)[indices])


@pytest.mark.slow
@given(task=tasks(), seed=seeds)
@settings(max_examples=100, deadline=None)
def test_what_every_problem_keeps_to(task: IGSM, seed: int) -> None:
    for tokens in task.sample(range(8), seed, "train").tokens.tolist():
        text = text_of(task, tokens)
        assert re.fullmatch(r"(<pad> )*[^<]*\?", text)
        uses, query = uses_by_name(task, tokens)
        assert len(uses) <= task.statements
        assert task.needed[0] <= len(depths(uses, query)) <= task.needed[1]
        for name, used in uses.items():
            upper, lower = (ENTITIES.index(entity) // 4 for entity in name.split("#"))
            assert lower == upper + 1
            assert len(used) == len(set(used)) <= 3
            depths(uses, name)  # every statement can be worked out, those that are not needed too


@pytest.mark.slow
@given(task=tasks(), seed=seeds)
@settings(max_examples=20, deadline=None)
def test_a_difficulty_has_one_number_of_needed_statements_and_all_else_of_the_task(task: IGSM, seed: int) -> None:
    fewest, most = task.needed
    whole = task.sample(range(40), seed, "test")
    assert list(task.difficulties) == [f"{m} needed" for m in range(fewest, most + 1)]
    for m, one in enumerate(task.difficulties.values(), start=fewest):
        assert one.length == task.length
        batch = one.sample(range(40), seed, "test")
        for tokens in batch.tokens[:4].tolist():
            assert len(depths(*uses_by_name(task, tokens))) == m
        # Where the whole task draws this number, the problem is the same.
        same = [i for i, tokens in enumerate(whole.tokens.tolist()) if len(depths(*uses_by_name(task, tokens))) == m]
        for field in ("tokens", "targets", "answers"):
            assert torch.equal(getattr(batch, field)[same], getattr(whole, field)[same])


def test_forms_of_statements() -> None:
    task = IGSM()
    forms: Counter[str] = Counter()
    for tokens in task.sample(range(2000), 0, "train").tokens.tolist():
        text = text_of(task, tokens).replace("<pad> ", "")
        for statement in re.split(r" \. ", text)[:-1]:
            right = re.sub("[A-P] # [A-P]", "x", statement.split(" := ")[1])
            forms[re.sub("[2-6]", "c", right) if "*" in right else re.sub("[0-6]", "c", right)] += 1
    sums = ["x", "x + x", "x - x", "x + x + x"]
    products = ["c * x", "c * ( x + x )", "c * ( x - x )", "c * ( x + x + x )"]
    assert set(forms) == {"c", *sums, *products, *(f"c + {right}" for right in sums)}


@pytest.mark.slow
def test_statements_left_out_for_want_of_room_are_few_and_not_needed() -> None:
    task = IGSM()
    assert task.length == 176
    counts = Counter(
        len(uses_by_name(task, tokens)[0]) for tokens in task.sample(range(4000), 0, "test").tokens.tolist()
    )
    assert counts[12] > 3960

    cramped = IGSM(statements=40, needed=(35, 35))
    for tokens in cramped.sample(range(200), 0, "test").tokens.tolist():
        assert len(depths(*uses_by_name(cramped, tokens))) == 35
    assert IGSM(statements=12, needed=(12, 12)).length == 216


def test_tightest_problem_fills_its_length() -> None:
    task = IGSM(statements=4, needed=(4, 4))
    padding = (task.sample(range(30_000), 0, "train").tokens == len(task.vocabulary) - 1).sum(1)
    assert padding.min() == 0


@pytest.mark.slow
def test_needed_and_distractors_are_as_documented() -> None:
    task = IGSM()
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
    answers = IGSM(needed=(needed, needed)).sample(range(rows), 0, "train").answers[:, -1]
    counts = torch.bincount(answers, minlength=7)
    assert ((counts - rows / 7).abs() < 5 * (rows / 7) ** 0.5).all()


@pytest.mark.slow
def test_every_answer_depends_on_a_constant() -> None:
    """With other constants, factors aside, the same problem has other answers."""
    task = IGSM()
    numbers = random.Random(0)
    for tokens in task.sample(range(200), 0, "train").tokens.tolist():
        text = text_of(task, tokens).replace("<pad> ", "")
        changed = [re.sub(r"\d(?! \*)", lambda _: str(numbers.randrange(7)), text) for _ in range(12)]
        assert len({task.solve(task.encode(other))[-1] for other in changed}) > 1


def test_what_would_always_be_zero_gets_a_constant() -> None:
    """x - y with y := x becomes x - y with y := c + x."""
    task = IGSM(statements=3, needed=(3, 3))
    shapes: Counter[frozenset[str]] = Counter()
    for tokens in task.sample(range(3000), 0, "train").tokens.tolist():
        *statements, _ = text_of(task, tokens).replace(" ", "").replace("<pad>", "").split(".")
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
        shuffled = igsm._shuffled(places, torch.full((6, 1), count), which)
        found = Counter(map(tuple, shuffled[:, 0].tolist()))
        assert set(found) == orders
        assert len(set(found.values())) == 1


@pytest.mark.slow
def test_every_edge_and_every_place_is_used_evenly() -> None:
    task = IGSM()
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


def test_splits_share_no_example() -> None:
    task = IGSM(needed=(4, 10))
    rows = torch.cat([task.sample(range(5000), 0, split).tokens for split in ("train", "validation", "test")])
    assert len(rows.unique(dim=0)) == len(rows)


def test_no_examples_at_all() -> None:
    assert IGSM().sample(range(0), 0, "train").tokens.shape == (0, IGSM().length)


def test_sample_of_the_paper() -> None:
    task = IGSM()
    tokens = task.encode(SAMPLE)
    assert len(tokens) == task.length
    assert task.solve(tokens) == [IGNORE] * (task.length - 1) + [0]
    drawn = task.render(tokens)
    for step in ("E#I = 4", "E#J = 4", "F#K = 4", "H#J = 1", "J#P = 4", "I#N = 4", "L#M = 5", "K#O = 5", "I#P = 0"):
        assert f"⟹ {step}." in drawn
    assert "I#N = 2 * (J#P + H#J + E#I). ⟹" in drawn
    assert drawn.endswith("answer 0; 9 of 12 statements are needed, 8 of them one after the other")
    # As printed in the paper, without brackets, the same line computes something else.
    assert "I#N = 2 * J#P + H#J + E#I. ⟹ I#N = 6." in task.render(task.encode(re.sub("[()]", "", SAMPLE)))


@pytest.mark.parametrize(
    ("right_side", "value"),
    [
        ("5", 5),
        ("A#E", 3),
        ("A#E + A#F", 1),
        ("A#E - A#F", 5),
        ("A#F - A#E - A#F", 4),
        ("2 * (A#E + A#F + A#G)", 0),
        ("2 * A#E + A#F + A#G", 3),
        ("A#E + 2 * A#F", 6),
        ("6 * (A#E - A#F)", 2),
        ("2 * 3 * A#F", 2),
        ("A#E - (A#F - A#G)", 4),
        ("4 + A#E", 0),
    ],
)
def test_solver_on_cases_worked_by_hand(right_side: str, value: int) -> None:
    task = IGSM()
    tokens = task.encode(f"B#E := {right_side}. A#E := 3. A#F := 5. A#G := 6. B#E?")
    assert task.solve(tokens)[-1] == value
    assert f"B#E = {right_side}. ⟹ B#E = {value}." in task.render(tokens)


def test_docstring_example() -> None:
    assert doctest.testmod(igsm).failed == 0


@given(task=tasks(), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_render_fits_a_terminal_and_reads_back(task: IGSM, seed: int) -> None:
    batch = task.sample(range(1), seed, "train")
    tokens = batch.tokens[0].tolist()
    drawn = task.render(tokens)
    assert all(len(line) <= 100 and line == line.rstrip() for line in drawn.splitlines())
    question, steps, answer = drawn.split("\n\n")
    assert task.encode(question) == tokens
    assert answer.startswith(f"answer {batch.answers[0, -1]};")
    known: set[str] = set()
    for step in steps.splitlines():
        name, *used = re.findall("[A-P]#[A-P]", step.split(" ⟹ ")[0])
        assert set(used) <= known
        known.add(name)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"modulus": 8}, "modulus=8; allowed are 3, 5, 7, 11, 13, 17, 19, 23"),
        ({"modulus": 7.0}, "modulus=7.0; allowed are 3, 5, 7, 11, 13, 17, 19, 23"),
        ({"modulus": "7"}, "modulus='7'; allowed are 3, 5, 7, 11, 13, 17, 19, 23"),
        ({"statements": 2}, "statements=2; allowed are integers, 3 to 48"),
        ({"statements": 49}, "statements=49; allowed are integers, 3 to 48"),
        ({"statements": 5}, "needed=10; allowed are integers, 1 to 5"),
        ({"needed": (0, 3)}, "needed=0; allowed are integers, 1 to 12"),
        ({"needed": (5, 3)}, "needed=3; allowed are integers, 5 to 12"),
        ({"needed": (5, 13)}, "needed=13; allowed are integers, 5 to 12"),
        ({"needed": 5}, "needed=(5,); allowed are two integers, the fewest and the most"),
        ({"needed": (1, 2, 3)}, "needed=(1, 2, 3); allowed are two integers, the fewest and the most"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        IGSM(**settings)
    assert str(error.value) == f"task igsm: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A#E := 4. A#E := 3. A#E?", "A#E is defined twice"),
        ("A#E := 4. A#F?", "A#F is used and not defined"),
        ("A#E := A#F. A#F := A#E. A#F?", "A#F is defined in terms of itself"),
        ("A#E := 4.", "expected an entity, A to P, at token 6 of 6, which is the end"),
        ("A#E := 2 * (A#F. A#E?", "expected ')', at token 10 of 15, which is '.'"),
        ("A#E 4. A#E?", "expected ':=', at token 3 of 9, which is '4'"),
        ("A#E := 4. A#E? A", "expected the end after '?', at token 10 of 11, which is 'A'"),
        ("", "expected an entity, A to P, at token 0 of 0, which is the end"),
    ],
)
def test_bad_problems(text: str, message: str) -> None:
    task = IGSM()
    tokens = [token for token in task.encode(text) if token != len(task.vocabulary) - 1]
    for reader in (task.solve, task.render):
        with pytest.raises(InputError) as error:
            reader(tokens)
        assert str(error.value).startswith(f"task igsm: {message}")
        assert "\n" not in str(error.value)


def test_bad_tokens_and_text() -> None:
    task = IGSM()
    with pytest.raises(InputError, match="token=33; allowed are integers, 0 to 32"):
        task.solve([33])
    with pytest.raises(InputError, match=r"task igsm: '7' in a problem; allowed are 0 1 2 3 4 5 6 A B"):
        task.encode("A#E := 7. A#E?")
    with pytest.raises(InputError, match="task igsm: a problem of 244 tokens; at most 176 fit"):
        task.encode("A#E := 4. " * 40 + "A#E?")
