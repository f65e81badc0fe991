from __future__ import annotations

import contextlib
import doctest
import io
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopt.errors import InputError
from loopt.tasks import IGNORE, VariableAssignment, assignment
from loopt.tasks.assignment import Problem


@st.composite
def assignments(draw: st.DrawFn) -> VariableAssignment:
    depth = draw(st.integers(0, 6))
    variables = draw(st.integers(2, min(10, 52 // (depth + 1))))
    return VariableAssignment(
        depth=depth,
        variables=variables,
        rendering=draw(st.sampled_from(["math", "code"])),
        shots=draw(st.integers(0, 5)),
        questions=draw(st.integers(1, variables)),
        order=draw(st.sampled_from(["levels", "shuffled"])),
        letters=draw(st.integers((depth + 1) * variables, 52)),
        largest=draw(st.integers(variables, 30)),
    )


seeds = st.integers(-(2**63), 2**63 - 1)


@given(
    task=assignments(), seed=seeds, split=st.sampled_from(["train", "validation", "test"]), first=st.integers(0, 2**61)
)
@settings(max_examples=150, deadline=None)
def test_sampler_agrees_with_solver(task: VariableAssignment, seed: int, split: Any, first: int) -> None:
    batch = task.sample(range(first, first + 4), seed, split)
    assert batch.tokens.shape == batch.targets.shape == batch.answers.shape == (4, task.length)
    for tokens, targets, answers in zip(
        batch.tokens.tolist(), batch.targets.tolist(), batch.answers.tolist(), strict=True
    ):
        labels = task.solve(tokens)
        assert targets == labels
        assert answers == [IGNORE] * (task.length - 1) + labels[-1:]
        assert sum(label != IGNORE for label in labels) == (task.shots + 1) * task.questions
        for position, label in enumerate(labels[:-1]):
            if label != IGNORE:  # a solved problem's answer is written after its question
                assert tokens[position + 1] == label
        assert task.answer(tokens) == task.vocabulary[labels[-1]]


@given(task=assignments(), seed=seeds)
@settings(max_examples=100, deadline=None)
def test_every_problem_is_as_deep_as_it_should_be(task: VariableAssignment, seed: int) -> None:
    for tokens in task.sample(range(3), seed, "train").tokens.tolist():
        problems = task._read(tokens)
        assert [problem.repeats for problem in problems] == [i % task.questions > 0 for i in range(len(problems))]
        assert len(problems) == (task.shots + 1) * task.questions
        for first in range(0, len(problems), task.questions):
            assert len({problem.asked for problem in problems[first : first + task.questions]}) == task.questions
        for problem in problems:
            set_to = dict(problem.assignments)
            assert len(set_to) == len(problem.assignments) == (task.depth + 1) * task.variables
            hops = Counter(len(Problem(problem.assignments, variable, 0).chain()) - 2 for variable in set_to)
            assert hops == dict.fromkeys(range(task.depth + 1), task.variables)
            assert len(problem.chain()) - 2 == task.depth
            copied = [value for value in set_to.values() if not value.isdecimal()]
            assert len(set(copied)) == len(copied)
            numbers = {int(value) for value in set_to.values() if value.isdecimal()}
            assert len(numbers) == task.variables
            assert max(numbers) <= task.largest
            assert min(numbers) >= 1
            if task.order == "levels":
                chains = [Problem(problem.assignments, variable, 0).chain() for variable in set_to]
                assert [len(chain) for chain in chains] == sorted(len(chain) for chain in chains)


@given(task=assignments(), seed=seeds)
@settings(max_examples=50, deadline=None)
def test_text_and_tokens_say_the_same(task: VariableAssignment, seed: int) -> None:
    tokens = task.sample(range(1), seed, "train").tokens[0].tolist()
    text = task.prompt(tokens)
    assert task.encode(text) == tokens
    assert text == text.rstrip()
    choices = task.choices(tokens)
    assert len(set(choices)) == len(choices) == task.variables
    assert task.answer(tokens) in choices


@given(task=assignments(), seed=seeds)
@settings(max_examples=50, deadline=None)
def test_code_is_python(task: VariableAssignment, seed: int) -> None:
    """Python itself is the solver: it prints what the comments say, and then the answer."""
    task = VariableAssignment(**{**task.__dict__, "rendering": "code"})
    tokens = task.sample(range(1), seed, "train").tokens[0].tolist()
    program = task.prompt(tokens)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(program, {})
    comments = [line.partition("#")[2].strip() for line in program.splitlines() if "#" in line]
    assert printed.getvalue().split() == [*comments[:-1], task.answer(tokens)]


@given(task=assignments(), seed=seeds, indices=st.lists(st.integers(0, 30), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_an_example_does_not_depend_on_its_batch(task: VariableAssignment, seed: int, indices: list[int]) -> None:
    whole = task.sample(range(31), seed, "train")
    some = task.sample(torch.tensor(indices), seed, "train")
    for field in ("tokens", "targets", "answers"):
        assert torch.equal(getattr(some, field), getattr(whole, field)[indices])


def even(counts: torch.Tensor) -> bool:
    expected = counts.double().mean()
    freedom = counts.numel() - 1
    return bool(abs(((counts - expected) ** 2 / expected).sum() - freedom) < 6 * (2 * freedom) ** 0.5)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_place_of_a_statement_says_nothing_about_the_answer(depth: int) -> None:
    task = VariableAssignment(depth=depth)
    rows = 30_000
    batch = task.sample(range(rows), 0, "train")
    statements = batch.tokens[:, :-3].view(rows, -1, 4)
    left, right, asked = statements[:, :, 0], statements[:, :, 2], batch.tokens[:, -3]
    answer = batch.answers[:, -1]
    place_of_answer = (right[:, :5] == answer[:, None]).long().argmax(1)
    place_of_question = (left[:, -5:] == asked[:, None]).long().argmax(1)
    assert even(torch.bincount(place_of_answer, minlength=5))
    if depth:
        assert even(torch.bincount(5 * place_of_question + place_of_answer, minlength=25))
    assert even(torch.bincount(answer, minlength=25))
    assert even(torch.bincount(asked - 25, minlength=26))
    assert even(torch.bincount(26 * answer + asked - 25, minlength=650))


def test_every_order_that_defines_before_use_is_as_likely() -> None:
    """Two chains of two can be interleaved in 3 ways, where it does not matter which chain is which."""
    task = VariableAssignment(depth=1, variables=2, order="shuffled")
    patterns: Counter[tuple[int, ...]] = Counter()
    for tokens in task.sample(range(6000), 0, "train").tokens.tolist():
        chain_of: dict[str, int] = {}
        for variable, set_to in task._read(tokens)[0].assignments:
            chain_of[variable] = chain_of[set_to] if set_to in chain_of else len(set(chain_of.values()))
        patterns[tuple(chain_of.values())] += 1
    assert set(patterns) == {(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 0)}  # chains are numbered as they begin
    assert even(torch.tensor(list(patterns.values())))


def test_tokens() -> None:
    task = VariableAssignment(variables=3, largest=3, letters=10)
    assert task.vocabulary == ("1", "2", "3", *"abcdefghij", "=", ",", "?", "\n", "print", "(", ")", "#")
    assert task.encode("a=1, b=a, b=?") == [3, 13, 0, 14, 4, 13, 3, 14, 4, 13, 15]
    assert VariableAssignment().length == 43
    assert VariableAssignment(rendering="code").length == 45
    assert VariableAssignment(shots=5).length == 6 * 45 - 2
    assert VariableAssignment(depth=6, letters=35).length == 4 * 35 + 3


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ("a=1, b=2, c=6, b=?", ["2"]),
        ("a=1, b=2, c=a, d=b, d=?", ["2"]),
        ("a=1, b=a, c=b, d=c, e=d, e=?", ["1"]),
        ("a=4, a=? 4\nb=5, c=b, a=9, c=?", ["4", "5"]),
        ("a=4, a=? 9\na=5, a=?", ["4", "5"]),  # the answer written there is wrong, and not looked at
    ],
)
def test_solver_on_cases_worked_by_hand(text: str, answers: list[str]) -> None:
    task = VariableAssignment()
    labels = task.solve(task.encode(text))
    assert [task.vocabulary[label] for label in labels if label != IGNORE] == answers
    assert labels[-1] != IGNORE


def test_splits_share_no_example() -> None:
    task = VariableAssignment()
    rows = torch.cat([task.sample(range(10_000), 0, split).tokens for split in ("train", "validation", "test")])
    assert len(rows.unique(dim=0)) == len(rows)


def test_no_examples_at_all() -> None:
    assert VariableAssignment(shots=1).sample(range(0), 0, "train").tokens.shape == (0, 88)


def test_docstring_examples() -> None:
    assert doctest.testmod(assignment).failed == 0


@given(task=assignments(), seed=seeds)
@settings(max_examples=40, deadline=None)
def test_render_fits_a_terminal_and_names_the_answer(task: VariableAssignment, seed: int) -> None:
    tokens = task.sample(range(1), seed, "train").tokens[0].tolist()
    lines = task.render(tokens).splitlines()
    assert lines[0].endswith(f"answer {task.answer(tokens)}")
    assert lines[-1].endswith(f"= {task.answer(tokens)}")
    assert lines[-1].count("=") == task.depth + 1
    assert all(len(line) <= 100 and line == line.rstrip() for line in lines)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": -1}, "depth=-1; allowed are integers, 0 to 1000000000"),
        ({"depth": 6}, "depth=6 with variables=5 needs 35 letters; letters=26, and at most 52 are allowed"),
        ({"depth": 10, "letters": 52}, "depth=10 with variables=5 needs 55 letters; letters=52, and at most 52"),
        ({"variables": 1}, "variables=1; allowed are integers, 2 to 25"),
        ({"variables": 10, "largest": 9}, "variables=10; allowed are integers, 2 to 9"),
        ({"largest": 1001}, "largest=1001; allowed are integers, 2 to 1000"),
        ({"letters": 53}, "letters=53; allowed are integers, 2 to 52"),
        ({"shots": 0.5}, "shots=0.5; allowed are integers, 0 to 1000000000"),
        ({"rendering": "Math"}, "rendering='Math'; allowed are math, code"),
        ({"order": "random"}, "order='random'; allowed are levels, shuffled"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        VariableAssignment(**settings)
    assert str(error.value).startswith(f"task assignment: {message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rendering", "text", "message"),
    [
        ("math", "", "token 1 is the end where a variable should stand"),
        ("math", "a=1", "token 4 is the end where ',' should stand"),
        ("math", "a=1,", "token 5 is the end where a variable should stand"),
        ("math", "1=a, a=?", "token 1 is '1' where a variable should stand"),
        ("math", "a=b, b=1, a=?", "token 3 is 'b' where a variable that has been set should stand"),
        ("math", "a=1, b=?", "token 5 is 'b' where a variable that has been set should stand"),
        ("math", "a=1, a=2, a=?", "token 5 is 'a' where a variable that has not been set should stand"),
        ("math", "a=1, a=? a=2", "token 8 is 'a' where a number should stand"),
        ("math", "a=1, a=? 1, b=?", "token 9 is ',' where '\\n' should stand"),
        ("math", "a=1\nprint(a)  #", "token 4 is '\\n' where ',' should stand"),
        ("code", "a=1, a=?", "token 4 is ',' where '\\n' should stand"),
        ("code", "a=1\nprint(b)  #", "token 7 is 'b' where a variable that has been set should stand"),
        ("code", "a=1\nprint(a", "token 8 is the end where ')' should stand"),
    ],
)
def test_bad_tokens(rendering: Any, text: str, message: str) -> None:
    task = VariableAssignment(rendering=rendering)
    for reader in (task.solve, task.render, task.prompt, task.choices, task.answer):
        with pytest.raises(InputError) as error:
            reader(task.encode(text))
        assert str(error.value) == f"task assignment: {message}"


def test_tokens_that_stand_for_nothing() -> None:
    with pytest.raises(InputError, match="task assignment: token=59; allowed are integers, 0 to 58"):
        VariableAssignment().solve([59])
    with pytest.raises(InputError, match="task assignment: '26' in the text is no token of the vocabulary"):
        VariableAssignment().encode("a=26, a=?")
