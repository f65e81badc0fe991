from __future__ import annotations

import doctest
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from igsm_reading import (
    SAMPLE,
    check_labels_so_far,
    depths,
    even_tasks,
    light_tasks,
    right_sides,
    seeds,
    text_of,
    uses_by_name,
)
from loopt.errors import InputError
from loopt.random_bits import Stream
from loopt.tasks import IGNORE, IGSM, igsm
from loopt.tasks.igsm_light import LightLaw
from loopt.tasks.igsm_problem import statements_that_fit
from loopt.tasks.igsm_text import ENTITIES

laws = st.one_of(light_tasks(), even_tasks())
tasks = st.builds(replace, laws, query=st.sampled_from(["last", "any"]))
of_both_laws = pytest.mark.parametrize(
    "task", [IGSM(), IGSM(law="even"), IGSM(query="any")], ids=["light", "even", "any"]
)


@pytest.mark.slow
@given(task=tasks, seed=seeds, split=st.sampled_from(["train", "validation", "test"]), first=st.integers(0, 2**61))
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
@of_both_laws
def test_agrees_with_solver_at_the_size_of_the_paper(task: IGSM) -> None:
    batch = task.sample(range(2000), 0, "test")
    assert batch.answers.tolist() == [task.solve(tokens) for tokens in batch.tokens.tolist()]


@pytest.mark.slow
@given(task=tasks, seed=seeds)
@settings(max_examples=60, deadline=None)
def test_every_name_is_asked_for_what_follows_so_far(task: IGSM, seed: int) -> None:
    every, last = (replace(task, supervision=kind).sample(range(3), seed, "train") for kind in ("every", "last"))
    assert torch.equal(every.tokens, last.tokens)
    assert torch.equal(every.answers, last.answers)
    for tokens, targets in zip(every.tokens.tolist(), every.targets.tolist(), strict=True):
        check_labels_so_far(task, tokens, targets)


@of_both_laws
def test_agrees_with_python_itself(task: IGSM) -> None:
    """Every name is replaced by its definition, and the whole is handed to eval."""
    batch = task.sample(range(200), 1, "test")
    for tokens, answer in zip(batch.tokens.tolist(), batch.answers[:, -1].tolist(), strict=True):
        definitions, written_out = right_sides(text_of(task, tokens))
        while "#" in written_out:
            first = written_out.index("#") - 1
            name, behind = written_out[first : first + 3], written_out[first + 3 :]
            written_out = f"{written_out[:first]}({definitions[name]}){behind}"
        assert eval(written_out) % 7 == answer


@given(task=tasks, seed=seeds, indices=st.lists(st.integers(0, 30), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_an_example_does_not_depend_on_its_batch(task: IGSM, seed: int, indices: list[int]) -> None:
    whole = task.sample(range(31), seed, "train")
    some = task.sample(torch.tensor(indices), seed, "train")
    for field in ("tokens", "targets", "answers"):
        assert torch.equal(getattr(some, field), getattr(whole, field)[indices])


@pytest.mark.slow
@given(task=tasks, seed=seeds)
@settings(max_examples=100, deadline=None)
def test_what_every_problem_keeps_to(task: IGSM, seed: int) -> None:
    for tokens in task.sample(range(8), seed, "train").tokens.tolist():
        assert re.fullmatch(r"(<pad> )*[^<]*\?", " ".join(task.vocabulary[token] for token in tokens))
        uses, query = uses_by_name(task, tokens)
        assert query in uses
        for name, used in uses.items():
            upper, lower = (ENTITIES.index(entity) // 4 for entity in name.split("#"))
            assert lower == upper + 1
            assert len(used) == len(set(used))
            depths(uses, name)  # every statement can be worked out, those that are not needed too


@pytest.mark.slow
@given(task=laws, seed=seeds)
@settings(max_examples=20, deadline=None)
def test_a_difficulty_has_the_problems_of_the_task_that_have_it(task: IGSM, seed: int) -> None:
    whole = task.sample(range(200), seed, "test")
    found = 0
    for one in task.difficulties.values():
        assert (one.length, one.vocabulary) == (task.length, task.vocabulary)
        batch = one.sample(range(200), seed, "test")
        same = (batch.tokens == whole.tokens).all(1)  # [200]
        for field in ("targets", "answers"):
            assert torch.equal(getattr(batch, field)[same], getattr(whole, field)[same])
        found += int(same.sum())
    assert found == 200  # each problem is of one difficulty and of no other


@of_both_laws
def test_splits_share_no_example(task: IGSM) -> None:
    """But for the shortest, of which there are few."""
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


@given(task=tasks, seed=seeds)
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
        ({"law": "heavy"}, "law='heavy'; allowed are light, even"),
        ({"levels": (1, 4)}, "levels=1; allowed are integers, 2 to 4"),
        ({"levels": (2, 5)}, "levels=5; allowed are integers, 2 to 4"),
        ({"levels": (4, 2)}, "levels=2; allowed are integers, 4 to 4"),
        ({"levels": 4}, "levels=(4,); allowed are two integers, the fewest and the most"),
        ({"edges": 11}, "edges=11; allowed are integers, 12 to 48"),
        ({"edges": 49}, "edges=49; allowed are integers, 12 to 48"),
        ({"edges": 17, "levels": (2, 2)}, "edges=17; allowed are integers, 4 to 16"),
        ({"operations": 0}, "operations=0; allowed are integers, 1 to 20"),
        ({"operations": 21}, "operations=21; allowed are integers, 1 to 20"),
        ({"statements": 2, "law": "even"}, "statements=2; allowed are integers, 3 to 48"),
        ({"statements": 49, "law": "even"}, "statements=49; allowed are integers, 3 to 48"),
        ({"statements": 5, "law": "even"}, "needed=10; allowed are integers, 1 to 5"),
        ({"needed": (0, 3), "law": "even"}, "needed=0; allowed are integers, 1 to 12"),
        ({"needed": (5, 3), "law": "even"}, "needed=3; allowed are integers, 5 to 12"),
        ({"needed": (5, 13), "law": "even"}, "needed=13; allowed are integers, 5 to 12"),
        ({"needed": 5, "law": "even"}, "needed=(5,); allowed are two integers, the fewest and the most"),
        ({"needed": (1, 2, 3)}, "needed=(1, 2, 3); allowed are two integers, the fewest and the most"),
        ({"needed": (1, 3)}, "needed=(1, 3) with law='light'; allowed with law='even'"),
        ({"statements": 13}, "statements=13 with law='light'; allowed with law='even'"),
        ({"operations": 10, "law": "even"}, "operations=10 with law='even'; allowed with law='light'"),
        ({"levels": (2, 4), "law": "even"}, "levels=(2, 4) with law='even'; allowed with law='light'"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        IGSM(**settings)
    assert str(error.value) == f"task igsm: {message}"


def test_pairs_may_come_as_lists() -> None:
    assert IGSM(levels=[2, 4]) == IGSM(levels=(2, 4))  # type: ignore[arg-type]


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
    with pytest.raises(InputError, match="task igsm: a problem of 244 tokens; at most 224 fit"):
        task.encode("A#E := 4. " * 40 + "A#E?")


@given(task=laws, seed=seeds)
@settings(max_examples=40, deadline=None)
def test_any_asks_of_the_same_statements_for_one_of_them(task: IGSM, seed: int) -> None:
    any_query = replace(task, query="any")
    assert not any_query.difficulties
    last, other = (one.sample(range(8), seed, "test").tokens for one in (task, any_query))
    assert torch.equal(last[:, :-4], other[:, :-4])
    for tokens in other.tolist():
        uses, query = uses_by_name(any_query, tokens)
        assert query in uses


@pytest.mark.parametrize("task", [IGSM(query="any"), IGSM(law="even", query="any")], ids=["light", "even"])
def test_any_asks_for_each_statement_as_often(task: IGSM) -> None:
    """By how many statements it needs: no more and no fewer than the others of its problem."""
    differences = []
    for tokens in task.sample(range(2000), 0, "test").tokens.tolist():
        uses, query = uses_by_name(task, tokens)
        needed = {name: len(depths(uses, name)) for name in uses}
        differences.append(needed[query] - sum(needed.values()) / len(needed))
    deviation = (sum(one**2 for one in differences) / len(differences)) ** 0.5
    assert abs(sum(differences) / len(differences)) < 4 * deviation / len(differences) ** 0.5


def test_any_never_asks_for_what_was_left_out_for_want_of_room() -> None:
    task, indices = IGSM(query="any"), torch.arange(30_000)
    problem = LightLaw(task.operations, task.edges, task.levels).draw(indices, Stream("igsm", 3, "train"), 7)
    fitting = statements_that_fit(problem, task.length)  # [batch, 1]
    crowded = indices[(fitting < problem.statements)[:, 0]]
    assert len(crowded) > 15
    for tokens, count in zip(task.sample(crowded, 3, "train").tokens.tolist(), fitting[crowded, 0], strict=True):
        assert len(uses_by_name(task, tokens)[0]) == count
        task.solve(tokens)  # fails where the query is not defined
