"""A batch of i-GSM problems as tensors, whichever law drew them: their values, their text and their labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopt.tasks.base import IGNORE
from loopt.tasks.igsm_text import ENTITIES, PAD

PER_LEVEL = 4
"""The entities of a level: A to D, E to H, I to L, M to P."""
MARKS = ("#", ":=", "+", "-", "*", "(", ")", ".", "?")
QUERY_TOKENS = 4
SHORT_RIGHT_SIDES = (1, 5, 11)
LONGEST_RIGHT_SIDE = 15
"""Tokens of a constant, of 2 * X#Y and of 2 * (X#Y + X#Y), and of what no right side is longer than: 2 * (X#Y + X#Y +
X#Y) or four names added."""
TOKENS_AROUND = 5
"""Tokens of a statement that are not on its right side: X#Y := and the full stop."""
FIRST_NAME_END, NAME_TOKENS = 9, 4
"""The column of a statement where the first name on its right side ends, and how far it is to the next one's."""


@dataclass(frozen=True)
class Problem:
    """A batch of problems. Their n parameters stand in an order in which each uses only earlier ones: first those that
    the problem is drawn around, the last of which needs all of them, then the others."""

    upper: Tensor
    """[batch, n]: the entity that the parameter's edge comes from, 0 to 15."""
    lower: Tensor
    """[batch, n]: the one it leads to."""
    statements: Tensor
    """[batch, 1]: how many of the n parameters there are; the rest mean nothing."""
    needed: Tensor
    """[batch, 1]: how many parameters the problem is drawn around."""
    query: Tensor
    """[batch, 1]: the parameter that is asked for."""
    count: Tensor
    """[batch, n]: how many parameters the definition uses, 0 to k."""
    operands: Tensor
    """[batch, n, k]: which ones, in the order written; those from ``count`` on mean nothing."""
    sign: Tensor
    """[batch, n, k]: 1 where one is added, -1 where it is subtracted, 0 from ``count`` on."""
    added: Tensor
    """[batch, n] bool: whether a constant is added to the operands."""
    factor: Tensor
    """[batch, n] bool: whether a constant multiplies them."""
    constant: Tensor
    """[batch, n]: that constant, or the whole right side where there are no operands; 0 where there is no constant."""


def ends_of(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both entities of edges by number: 0 is A#E, 1 is A#F, and 47, the last one, L#P."""
    upper = edges // PER_LEVEL
    return upper, (upper // PER_LEVEL + 1) * PER_LEVEL + edges % PER_LEVEL


def signs(count: Tensor, minus: Tensor, most_operands: int) -> Tensor:
    """Returns the signs of operands, [batch, n] -> [batch, n, k]: the second of just two is subtracted where ``minus``
    is 1, all others are added."""
    places = torch.arange(most_operands, device=count.device)  # [k]
    subtracted = ((count == 2) & (minus == 1))[:, :, None] & (places == 1)  # [batch, n, k]
    return (places < count[:, :, None]).long() * (1 - 2 * subtracted.long())


def values_of(problem: Problem, modulus: int) -> Tensor:
    """Returns the value of each parameter, [batch, n], worked out from the first one on."""
    values = torch.zeros_like(problem.count)  # [batch, n]
    for i in range(values.shape[1]):
        total = (values.gather(1, problem.operands[:, i]) * problem.sign[:, i]).sum(1)  # [batch]
        constant = problem.constant[:, i]
        values[:, i] = torch.where(problem.factor[:, i], constant * total, constant + total) % modulus
    return values


def of_query(values: Tensor, problem: Problem) -> Tensor:
    """Returns the value that the query asks for: [batch, n] values -> [batch]."""
    return values.gather(1, problem.query)[:, 0]


def longest_text(statements: int) -> int:
    """Returns the most tokens that statements can have; the first has no parameter to use, the second has one, …"""
    right_sides = (*SHORT_RIGHT_SIDES, *[LONGEST_RIGHT_SIDE] * statements)[:statements]
    return TOKENS_AROUND * statements + sum(right_sides)


def statements_that_fit(problem: Problem, length: int) -> Tensor:
    """Returns how many statements, [batch, 1], are written in a text of ``length`` tokens: those from the first on that
    it has room for. None of them uses one that is not written."""
    count, factor = problem.count, problem.factor
    names = NAME_TOKENS * count - 1  # with the signs between them
    right_side = torch.where(count == 0, 1, names + 2 * (problem.added | factor) + 2 * (factor & (count > 1)))
    tokens = (TOKENS_AROUND + right_side).cumsum(1)  # [batch, n]
    there = torch.arange(count.shape[1], device=count.device) < problem.statements  # [batch, n]
    return (there & (tokens <= length - QUERY_TOKENS)).sum(1, keepdim=True)


def write(problem: Problem, order: Tensor, modulus: int, length: int) -> tuple[Tensor, Tensor]:
    """Returns the [batch, length] tokens of the statements in this [batch, n] order and of the query, with padding in
    front, and the position of each statement's columns, [batch, n, columns], which for columns that are not written is
    where the query begins.

    Every statement is laid out in the same columns, with three operands those of X#Y := c * (X#Y + X#Y + X#Y). and
    uses some of them; then the columns in use are moved together.
    """
    mark = {symbol: modulus + len(ENTITIES) + k for k, symbol in enumerate((*MARKS, PAD))}
    upper, lower = modulus + problem.upper, modulus + problem.lower  # [batch, n]
    layout, in_use = _lay_out(problem, upper, lower, mark)  # [batch, n, columns]

    # A column goes after the earlier ones of its statement, and after the statements that are written earlier.
    batch, n = upper.shape
    width = length - QUERY_TOKENS
    column = in_use.cumsum(2)  # [batch, n, columns], from 1
    tokens_of = column[:, :, -1]  # [batch, n]
    fits = torch.arange(n, device=upper.device) < statements_that_fit(problem, length)  # [batch, n]
    ends = (tokens_of * fits).gather(1, order).cumsum(1)  # [batch, n]
    end = torch.zeros_like(ends).scatter(1, order, ends)  # [batch, n]
    start = width - ends[:, -1:] + end - tokens_of  # [batch, n]
    place = torch.where(in_use & fits[:, :, None], start[:, :, None] + column - 1, width)  # [batch, n, columns]
    tokens = torch.full((batch, width + 1), mark[PAD], dtype=torch.int64, device=upper.device)
    tokens = tokens.scatter(1, place.flatten(1), layout.flatten(1))[:, :-1]  # [batch, width]
    asked = [entity.gather(1, problem.query) for entity in (upper, lower)]  # [batch, 1] each
    sharp, question = _filled(mark["#"], asked[0]), _filled(mark["?"], asked[0])
    return torch.cat([tokens, asked[0], sharp, asked[1], question], dim=1), place


def _lay_out(problem: Problem, upper: Tensor, lower: Tensor, mark: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Returns the token in every column of the statements, and whether it is in use, [batch, n, columns] each."""
    count, factor, operands = problem.count, problem.factor, problem.operands
    used = operands.flatten(1)  # [batch, n * k]
    used_upper, used_lower = (entity.gather(1, used).view_as(operands) for entity in (upper, lower))
    always = torch.ones_like(factor)
    constant_first = problem.added | factor
    brackets = factor & (count > 1)
    columns: list[tuple[Tensor | int, Tensor]] = [(upper, always), (mark["#"], always), (lower, always)]
    columns += [(mark[":="], always), (problem.constant, constant_first | (count == 0))]
    columns += [(torch.where(factor, mark["*"], mark["+"]), constant_first), (mark["("], brackets)]
    for k in range(operands.shape[2]):
        there = count > k
        if k:
            columns.append((torch.where(problem.sign[:, :, k] < 0, mark["-"], mark["+"]), there))
        columns += [(used_upper[:, :, k], there), (mark["#"], there), (used_lower[:, :, k], there)]
    columns += [(mark[")"], brackets), (mark["."], always)]
    layout = torch.stack([_filled(token, count) for token, _ in columns], dim=2)
    return layout, torch.stack([there for _, there in columns], dim=2)


def with_values_so_far(answers: Tensor, problem: Problem, values: Tensor, places: Tensor) -> Tensor:
    """Returns the [batch, length] labels of the answers and of each parameter's value, where its definition ends and
    where its name ends in another definition, if all that it depends on stands before."""
    n, most_operands = problem.operands.shape[1:]
    ends = places[:, :, -1]  # [batch, n]
    complete = ends.clone()  # [batch, n]: where the last of the statements ends that a parameter depends on
    for i in range(n):
        used = torch.where(problem.sign[:, i] != 0, complete.gather(1, problem.operands[:, i]), 0)  # [batch, k]
        complete[:, i] = complete[:, i].maximum(used.amax(1))
    which = problem.operands.flatten(1)  # [batch, n * k]
    name_ends = slice(FIRST_NAME_END, FIRST_NAME_END + NAME_TOKENS * most_operands, NAME_TOKENS)
    at = torch.cat([ends, places[:, :, name_ends].flatten(1)], dim=1)  # [batch, n * (1 + k)]
    since = torch.cat([complete, complete.gather(1, which)], dim=1)
    labels = torch.cat([values, values.gather(1, which)], dim=1)
    known = (since <= at) & (at < answers.shape[1] - QUERY_TOKENS)  # what is not written has no place before the query
    return answers.scatter(1, at, torch.where(known, labels, IGNORE))


def _filled(token: Tensor | int, like: Tensor) -> Tensor:
    return token if isinstance(token, Tensor) else torch.full_like(like, token)
