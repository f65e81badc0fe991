from __future__ import annotations

import doctest
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
import tyro
from hypothesis import given, settings
from hypothesis import strategies as st

from loopt.errors import InputError
from loopt.tasks import IGNORE, addition
from loopt.tasks.addition import END, EQUALS, PAD, Addition, Fill
from loopt.tasks.base import Supervision

seeds = st.integers(-(2**63), 2**63 - 1)
splits = st.sampled_from(["train", "validation", "test"])
counts = st.lists(st.integers(1, 40), min_size=1, max_size=4, unique=True)
rooms = st.sampled_from([(0, "padding"), (40, "padding"), (43, "padding"), (40, "zeros"), (43, "zeros")])


def text(tokens: list[int]) -> str:
    return "".join(Addition().vocabulary[token] for token in tokens)


def ids(written: str) -> list[int]:
    return ["0123456789+=".index(symbol) for symbol in written]


@given(counts=counts, digits=st.integers(1, 6), room=rooms, seed=seeds, split=splits, first=st.integers(0, 2**61))
@settings(max_examples=150, deadline=None)
def test_sampler_agrees_with_solver(
    counts: list[int], digits: int, room: tuple[int, Fill], seed: int, split: Any, first: int
) -> None:
    task = Addition(operands=tuple(counts), digits=digits, supervision="every", room=room[0], fill=room[1])
    batch = task.sample(range(first, first + 2 * len(counts)), seed, split)
    assert batch.tokens.shape == batch.targets.shape == batch.answers.shape == (2 * len(counts), task.length)
    assert batch.targets.tolist() == [task.solve(tokens) for tokens in batch.tokens.tolist()]
    from_equals_on = (batch.tokens == EQUALS).cumsum(1) > 0
    assert torch.equal(batch.answers, batch.targets.where(from_equals_on, IGNORE))

    last = replace(task, supervision="last").sample(range(first, first + 2 * len(counts)), seed, split)
    assert torch.equal(last.tokens, batch.tokens)
    assert torch.equal(last.targets, batch.answers)
    assert torch.equal(last.answers, batch.answers)


def test_supervision_at_every_digit_is_for_its_column_so_far() -> None:
    labels = Addition(operands=(4,), supervision="every").solve(ids("315+120+945+886="))
    assert labels == [0, 0, 0, IGNORE, 4, 3, 5, IGNORE, 1, 0, 1, IGNORE, 1, 5, 6, 2]


@given(counts=counts, digits=st.integers(1, 4), seed=seeds, supervision=st.sampled_from(get_args(Supervision)))
@settings(max_examples=80, deadline=None)
def test_room_puts_all_sums_in_one_place(counts: list[int], digits: int, seed: int, supervision: Supervision) -> None:
    """Room changes nothing but the padding around an example."""
    room = Addition(operands=tuple(counts), digits=digits, supervision=supervision, room=40)
    batch = room.sample(range(3 * len(counts)), seed, "train")
    assert room.length == Addition(operands=(40,), digits=digits).length == batch.tokens.shape[1]
    assert (batch.tokens[:, 40 * (digits + 1) - 1] == EQUALS).all()
    for one in room.mixture:
        assert isinstance(one, Addition)
        assert one.length == room.length
        padded = one.sample(range(3), seed, "train")
        plain = replace(one, room=0).sample(range(3), seed, "train")
        front = (40 - one.operands[0]) * (digits + 1)
        for name, filler in (("tokens", PAD), ("targets", IGNORE), ("answers", IGNORE)):
            found, expected = getattr(padded, name), getattr(plain, name)
            inside = slice(front, front + expected.shape[1])
            assert torch.equal(found[:, inside], expected)
            assert (found[:, :front] == filler).all()
            assert (found[:, inside.stop :] == filler).all()
        for tokens, unpadded in zip(padded.tokens.tolist(), plain.tokens.tolist(), strict=True):
            assert room.render(tokens) == room.render(unpadded)


@given(counts=counts, digits=st.integers(1, 4), seed=seeds)
@settings(max_examples=40, deadline=None)
def test_zeros_in_front_change_neither_numbers_nor_sum(counts: list[int], digits: int, seed: int) -> None:
    padded = Addition(operands=tuple(counts), digits=digits, room=40)
    zeros = replace(padded, fill="zeros")
    some, others = (task.sample(range(3 * len(counts)), seed, "train").tokens for task in (padded, zeros))
    for tokens, filled in zip(some.tolist(), others.tolist(), strict=True):
        front = tokens.count(PAD) - filled.count(PAD)
        assert text(filled[:front]) == ("0" * digits + "+") * (front // (digits + 1))
        assert filled[front:] == tokens[front:]


def test_room_is_kept_by_tests_of_other_lengths() -> None:
    assert {test.length for test in Addition(operands=(2, 32), room=32).tests.values()} == {134}


@given(counts=st.integers(1, 40), digits=st.integers(1, 25), seed=seeds)
@settings(max_examples=80, deadline=None)
def test_tokens_are_the_written_sum(counts: int, digits: int, seed: int) -> None:
    """This includes sums that are too large for an int64."""
    task = Addition(operands=(counts,), digits=digits)
    for tokens in task.sample(range(3), seed, "train").tokens.tolist():
        written, _, padding = text(tokens).partition("end")
        question, answer = written.split("=")
        operands = question.split("+")
        assert len(operands) == counts
        assert {len(operand) for operand in operands} == {digits}
        assert answer == str(sum(map(int, operands)))
        assert padding.replace("pad", "") == ""


def test_labels_are_the_next_tokens_from_the_equals_sign_to_the_end() -> None:
    for task in Addition().mixture:
        batch = task.sample(range(200), 0, "train")
        for tokens, labels in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
            equals, end = tokens.index(EQUALS), tokens.index(END)
            assert labels[equals:end] == tokens[equals + 1 : end + 1]
            assert set(labels[:equals] + labels[end:]) == {IGNORE}
            assert set(tokens[end + 1 :]) <= {PAD}


@pytest.mark.parametrize(
    ("counts", "digits", "length"),
    [(2, 3, 13), (4, 3, 21), (8, 3, 37), (16, 3, 70), (32, 3, 134), (1, 1, 4), (11, 1, 25), (12, 1, 28)],
)
def test_length_is_that_of_the_longest_sum(counts: int, digits: int, length: int) -> None:
    task = Addition(operands=(counts,), digits=digits)
    assert task.length == length
    assert task.sample(range(3), 0, "train").tokens.shape == (3, length)
    largest = "+".join(["9" * digits] * counts)
    assert length == len(f"{largest}={eval(largest)}") + 1


def test_a_sum_of_zero_is_one_zero() -> None:
    task = Addition(operands=(2,), digits=1)
    batch = task.sample(range(2000), 0, "train")
    zeros = (batch.tokens[:, 0] == 0) & (batch.tokens[:, 2] == 0)
    assert zeros.any()
    assert batch.tokens[zeros].unique(dim=0).tolist() == [[*ids("0+0=0"), END, PAD]]
    assert batch.targets[zeros].unique(dim=0).tolist() == [[IGNORE] * 3 + [0, END, IGNORE, IGNORE]]


def test_operands_are_uniform_and_unrelated() -> None:
    task = Addition(operands=(2,), digits=2)
    tokens = task.sample(range(200_000), 0, "train").tokens
    first, second = tokens[:, 0] * 10 + tokens[:, 1], tokens[:, 3] * 10 + tokens[:, 4]
    pairs = torch.bincount(first * 100 + second, minlength=10_000).double()
    chi_square = ((pairs - 20) ** 2 / 20).sum().item()
    assert abs(chi_square - 9_999) < 5 * (2 * 9_999) ** 0.5


def test_sum_has_the_moments_of_a_sum_of_uniform_numbers() -> None:
    task = Addition(operands=(32,))
    sums = []
    for tokens in task.sample(range(4000), 0, "test").tokens.tolist():
        sums.append(float(text(tokens[tokens.index(EQUALS) + 1 : tokens.index(END)])))
    found = torch.tensor(sums)
    deviation = (32 * (10**6 - 1) / 12) ** 0.5
    assert abs(found.mean().item() - 32 * 499.5) < 5 * deviation / 4000**0.5
    assert abs(found.std().item() / deviation - 1) < 5 / 8000**0.5


@given(counts=counts, digits=st.integers(1, 4), seed=seeds, indices=st.lists(st.integers(0, 60), min_size=1))
@settings(max_examples=40, deadline=None)
def test_a_mixture_takes_turns_between_its_tasks(counts: list[int], digits: int, seed: int, indices: list[int]) -> None:
    task = Addition(operands=tuple(counts), digits=digits)
    batch = task.sample(torch.tensor(indices), seed, "train")
    for row, index in enumerate(indices):
        one = task.mixture[index % len(counts)]
        assert one == Addition(operands=(counts[index % len(counts)],), digits=digits)
        alone = one.sample(range(index // len(counts), index // len(counts) + 1), seed, "train")
        for field, filler in (("tokens", PAD), ("targets", IGNORE), ("answers", IGNORE)):
            found, expected = getattr(batch, field)[row], getattr(alone, field)[0]
            assert torch.equal(found[: one.length], expected)
            assert (found[one.length :] == filler).all()


def test_longer_examples_do_not_begin_with_shorter_ones() -> None:
    short, long = (Addition(operands=(n,)).sample(range(2000), 0, "train").tokens[:, :7] for n in (2, 4))
    assert (short[:, :3] == long[:, :3]).all(1).sum() < 20


def test_splits_share_no_example() -> None:
    task = Addition(operands=(8,))
    rows = torch.cat([task.sample(range(10_000), 0, split).tokens for split in ("train", "validation", "test")])
    assert len(rows.unique(dim=0)) == len(rows)


def test_mixture_and_tests() -> None:
    task = Addition()
    assert task.mixture == tuple(Addition(operands=(n,)) for n in (2, 4, 8, 16, 32))
    assert {one.vocabulary for one in task.mixture} == {task.vocabulary}
    assert task.tests == {f"n={n}": Addition(operands=(n,)) for n in (8, 16, 24, 32)}
    assert Addition(digits=5, test_operands=3).tests == {"n=3": Addition(3, 5, 3)}  # type: ignore[arg-type]
    assert Addition(operands=(8,)).mixture == (Addition(operands=(8,)),)
    assert Addition(operands=8) == Addition(operands=(8,)) == Addition(operands=[8])  # type: ignore[arg-type]


def test_settings_on_the_command_line() -> None:
    assert tyro.cli(Addition, args=["--operands", "2", "3", "--test-operands", "5"]) == Addition((2, 3), 3, (5,))


def test_no_examples_at_all() -> None:
    assert Addition().sample(range(0), 0, "train").tokens.shape == (0, 134)
    assert Addition(operands=(2,)).sample(range(0), 0, "train").tokens.shape == (0, 13)


@pytest.mark.parametrize(
    ("question", "answer"), [("315+120+045+824=", "1304"), ("000+000=", "0"), ("999+001=", "1000"), ("042=", "42")]
)
def test_solver_on_cases_worked_by_hand(question: str, answer: str) -> None:
    task = Addition()
    labels = task.solve([*ids(question + answer), END, PAD])
    assert labels[len(question) - 1 :] == [*ids(answer), END, IGNORE, IGNORE]
    assert task.solve(ids(question)) == labels[: len(question)]
    wrong = "7" * len(answer)
    assert task.solve([*ids(question + wrong), PAD, EQUALS]) == labels


def test_solver_reads_a_row_of_a_batch_as_it_is() -> None:
    task = Addition(operands=(4,), supervision="every", room=32)
    batch = task.sample(range(2), 0, "test")
    assert [task.solve(tokens) for tokens in batch.tokens] == batch.targets.tolist()


def test_docstring_example() -> None:
    assert doctest.testmod(addition).failed == 0


def test_render_of_a_sum_with_long_carries() -> None:
    drawn = Addition(digits=2).render(ids("+".join(["99"] * 12) + "="))
    assert drawn.splitlines() == [
        "12 operands of 2 digits: answer 1188",
        "",
        "carry  1 11 10",
        "             9  9",
        *["          +  9  9"] * 11,
        "     ────────────",
        "       1  1  8  8",
        "",
        "99+99+99+99+99+99+99+99+99+99+99+99=1188",
    ]


def test_render_of_a_sum_shorter_than_its_operands() -> None:
    assert Addition(digits=3).render(ids("007=")).splitlines() == [
        "1 operand of 3 digits: answer 7",
        "",
        "carry",
        "          0  0  7",
        "     ────────────",
        "                7",
        "",
        "007=7",
    ]


def test_render_fits_a_terminal() -> None:
    task = Addition()
    for tokens in task.sample(range(20), 0, "test").tokens.tolist():
        drawn = task.render(tokens).splitlines()
        assert all(len(line) <= 100 and line == line.rstrip() for line in drawn)
        assert "".join(drawn[drawn.index("", 2) :]) == text(tokens).partition("end")[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"operands": ()}, "operands=(); allowed are one or more integers"),
        ({"operands": 0}, "operands=0; allowed are integers, 1 to 1000000000"),
        ({"operands": (2, -1)}, "operands=-1; allowed are integers, 1 to 1000000000"),
        ({"operands": "2"}, "operands='2'; allowed are integers, 1 to 1000000000"),
        ({"operands": (2, 2)}, "operands=(2, 2); allowed are different integers"),
        ({"test_operands": ()}, "test_operands=(); allowed are one or more integers"),
        ({"test_operands": 1.5}, "test_operands=1.5; allowed are integers, 1 to 1000000000"),
        ({"test_operands": (8, 8)}, "test_operands=(8, 8); allowed are different integers"),
        ({"supervision": "all"}, "supervision='all'; allowed are last, every"),
        ({"room": -1}, "room=-1; allowed are integers, 0 to 1000000000"),
        ({"room": 31}, "room=31; allowed are 32 or more, as many as are added, or 0"),
        ({"fill": "ones", "room": 32}, "fill='ones'; allowed are padding, zeros"),
        ({"fill": "zeros"}, "fill='zeros' with room=0; allowed is a room of 32 or more"),
        ({"operands": 2, "room": 8}, "room=8; allowed are 32 or more, as many as are added, or 0"),
        ({"digits": 0}, "digits=0; allowed are integers, 1 to 1000"),
        ({"digits": 1001}, "digits=1001; allowed are integers, 1 to 1000"),
        ({"digits": True}, "digits=True; allowed are integers, 1 to 1000"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        Addition(**settings)
    assert str(error.value).startswith(f"task addition: {message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "tokens=''; allowed are operands followed by '='"),
        (ids("123+456"), "tokens='123+456'; allowed are operands followed by '='"),
        (ids("123+45="), "operand='45'; allowed are numbers of 3 digits"),
        ([PAD, *ids("1"), PAD, *ids("2=")], "operand='1pad2'; allowed are numbers of 3 digits"),
        (ids("="), "operand=''; allowed are numbers of 3 digits"),
        ([1, 2, END, EQUALS], "operand='12end'; allowed are numbers of 3 digits"),
        ([1, 2, 14], "token=14; allowed are integers, 0 to 13"),
        ([1, -1], "token=-1; allowed are integers, 0 to 13"),
    ],
)
def test_bad_tokens(tokens: list[int], message: str) -> None:
    for reader in (Addition().solve, Addition().render):
        with pytest.raises(InputError) as error:
            reader(tokens)
        assert str(error.value).startswith(f"task addition: {message}")
        assert "\n" not in str(error.value)
