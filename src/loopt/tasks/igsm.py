"""Symbolic i-GSM: a page of definitions in no order, and the value of one of them is asked for, modulo 7.

Entities A to P stand on four levels, four to a level. An edge between neighboring levels, such as E#I, is a
parameter; each parameter of a problem is defined once, from a constant or from other parameters. Those that the query
does not need are distractors. The answer is one number, with no steps written down before it. docs/igsm.md says how
problems are drawn, with statistics.

>>> task = IGSM(statements=4, needed=(1, 3))
>>> print(task.render(task.encode("F#K := 3 + E#I. E#J := 2 * (E#I - F#K). A#E := F#K. E#I := 5. E#J?")))
F#K := 3 + E#I. E#J := 2 * (E#I - F#K). A#E := F#K. E#I := 5. E#J?
<BLANKLINE>
E#I = 5. ⟹ E#I = 5.
F#K = 3 + E#I. ⟹ F#K = 1.
E#J = 2 * (E#I - F#K). ⟹ E#J = 1.
<BLANKLINE>
answer 1; 3 of 4 statements are needed, 3 of them one after the other
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, get_args

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.random_bits import Stream
from loopt.tasks.base import IGNORE, Batch, Supervision, Task, check_choice, check_integer
from loopt.tasks.igsm_text import ENTITIES, PAD, Expression, Reader, names_in, worked_out, written

PER_LEVEL = 4
EDGES = 48
"""The parameters there can be: 12 entities have a level below them, with four entities each."""

MODULI = (3, 5, 7, 11, 13, 17, 19, 23)
MARKS = ("#", ":=", "+", "-", "*", "(", ")", ".", "?")

MOST_OPERANDS = 3
LONGEST_RIGHT_SIDE = (1, 5, 11, 15)
"""Tokens of a constant, of 2 * X#Y, of 2 * (X#Y + X#Y) and of 2 * (X#Y + X#Y + X#Y)."""
TOKENS_AROUND = 5
"""Tokens of a statement that are not on its right side: X#Y := and the full stop."""
NAME_ENDS = slice(9, 18, 4)
"""The columns, of the 20 that a statement is laid out in, where the names on its right side end."""
QUERY_TOKENS = 4
ROOM = 14
"""Tokens set aside for a statement. Few problems use more on average, and those that do lose their last distractors."""


@dataclass(frozen=True)
class IGSM(Task):
    name: ClassVar[str] = "igsm"

    modulus: int = 7
    """The modulus of the arithmetic: an odd prime, at most 23."""
    statements: int = 12
    """How many parameters are defined."""
    needed: tuple[int, int] = (1, 10)
    """The fewest and the most statements the query depends on, its own included; all numbers are equally likely."""
    supervision: Supervision = "last"
    """last: the answer is the only label. every: the value of a parameter is also a label wherever a statement has just
    named or defined it, if it follows from the tokens so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.modulus not in MODULI or isinstance(self.modulus, bool | float):
            raise InputError(f"task igsm: modulus={self.modulus!r}; allowed are {', '.join(map(str, MODULI))}")
        check_integer(self.name, "statements", self.statements, MOST_OPERANDS, EDGES)
        # JSON gives a list.
        needed = tuple(self.needed) if isinstance(self.needed, list | tuple) else (self.needed,)
        object.__setattr__(self, "needed", needed)
        if len(needed) != 2:
            raise InputError(f"task igsm: needed={self.needed!r}; allowed are two integers, the fewest and the most")
        check_integer(self.name, "needed", needed[0], 1, self.statements)
        check_integer(self.name, "needed", needed[1], needed[0], self.statements)
        check_choice(self.name, "supervision", self.supervision, get_args(Supervision))

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Returns the tokens by id; numbers come first, so that each is its own id, and an answer its own label."""
        return (*map(str, range(self.modulus)), *ENTITIES, *MARKS, PAD)

    @property
    def length(self) -> int:
        """Returns a length for all that a query can need, and for all distractors in all but a few problems in 1000."""
        most_room = max(ROOM * self.statements, _longest_text(self.needed[1]))
        return min(most_room, _longest_text(self.statements)) + QUERY_TOKENS

    @property
    def difficulties(self) -> dict[str, Task]:
        fewest, most = self.needed
        settings = {field.name: getattr(self, field.name) for field in fields(IGSM)}
        return {
            f"{m} needed": _OneDifficulty(**settings | {"needed": (m, m)}, whole_length=self.length)
            for m in range(fewest, most + 1)
        }

    def draw(self, indices: Tensor, stream: Stream) -> Batch:
        problem = self._problem(indices, stream)
        tokens, places = self._written(problem, indices, stream)  # [batch, length] and [batch, n, 20]
        values = self._values(problem)  # [batch, n]
        answers = torch.full_like(tokens, IGNORE)
        answers[:, -1] = _of_query(values, problem)
        if self.supervision == "last":
            return Batch(tokens, answers, answers)
        return Batch(tokens, self._with_values_so_far(answers, problem, values, places), answers)

    def _problem(self, indices: Tensor, stream: Stream) -> _Problem:
        n = self.statements
        fewest, most = self.needed
        needed = fewest + stream.integers(indices, 1, most - fewest + 1, "needed")  # [batch, 1]
        edges = stream.sort_keys(indices, EDGES, "edges").topk(n, dim=1, largest=False).indices  # [batch, n]
        count, operands = self._dependencies(indices, needed, stream)  # [batch, n] and [batch, n, 3]

        second_sign = 1 - 2 * ((count == 2) & (stream.integers(indices, n, 2, "minus") == 1)).long()  # [batch, n]
        sign = torch.stack([count > 0, (count > 1) * second_sign, count > 2], dim=2).long()  # [batch, n, 3]

        role = stream.integers(indices, n, 6, "constant role")  # [batch, n]
        added, factor = (count > 0) & (role == 0), (count > 0) & (role == 1)  # [batch, n]
        factors = 2 + stream.integers(indices, n, self.modulus - 2, "factors")  # [batch, n]; 1 * x would be x
        times = self._times_used(needed, operands, sign, torch.where(factor, factors, 1))  # [batch, n]
        # If no constant matters, as in x - x and 7 * x, the answer is 0. Then the first parameter that does matter gets
        # a constant to add. So every answer is equally likely, whatever the shape of the problem.
        matters = times != 0  # [batch, n]
        always_zero = ~(matters & ((count == 0) | added)).any(1, keepdim=True)  # [batch, 1]
        saved = always_zero & matters & (matters.cumsum(1) == 1)  # [batch, n]
        added, factor = added | saved, factor & ~saved

        constant = stream.integers(indices, n, self.modulus, "constants")  # [batch, n]
        constant = torch.where(factor, factors, torch.where((count == 0) | added, constant, 0))
        return _Problem(edges, needed, count, operands, sign, added, factor, constant)

    def _dependencies(self, indices: Tensor, needed: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
        """Draws how many parameters each one uses, [batch, n], and which, [batch, n, 3]."""
        n = self.statements
        i = torch.arange(n, device=indices.device)  # [n]

        # A needed parameter may use all that come before it; so may half of the distractors, and the rest of them use
        # nothing but one another.
        apart = (i >= needed) & (stream.integers(indices, n, 2, "apart") == 1)  # [batch, n]
        may_use = (i[:, None] > i) & (~apart[:, :, None] | apart[:, None, :])  # [batch, n, n]

        # Whatever is needed is used by the next needed one, or one time in four by the one after that.
        skips = (i + 2 < needed) & (stream.integers(indices, n, 4, "skips") == 0)  # [batch, n]
        further_on = i[:, None] - i  # [n, n]
        must_use = (i[:, None] < needed[:, :, None]) & (further_on == 1 + skips[:, None, :].long())  # [batch, n, n]

        wanted = stream.integers(indices, n, 5, "operands wanted").clamp(max=MOST_OPERANDS)  # [batch, n]
        count = wanted.maximum(must_use.sum(2)).minimum(may_use.sum(2))  # [batch, n]
        keys = stream.sort_keys(indices, n * n, "operands").view(len(indices), n, n)
        keys = torch.where(may_use, keys, torch.iinfo(torch.int64).max)
        keys = torch.where(must_use, -1 - i, keys)
        operands = keys.topk(MOST_OPERANDS, dim=2, largest=False).indices  # [batch, n, 3]
        return count, _shuffled(operands, count, stream.integers(indices, n, 6, "operand order"))

    def _times_used(self, needed: Tensor, operands: Tensor, sign: Tensor, factor: Tensor) -> Tensor:
        """Returns by how much the answer changes if a parameter changes by 1, [batch, n]: passed on from the query to
        the parameters that it uses, and so on."""
        times = (torch.arange(self.statements, device=needed.device) == needed - 1).long()  # [batch, n]
        for i in reversed(range(self.needed[1])):
            passed_on = times[:, i, None] * factor[:, i, None] * sign[:, i]  # [batch, 3]
            times = times.scatter_add(1, operands[:, i], passed_on) % self.modulus
        return times

    def _values(self, problem: _Problem) -> Tensor:
        """Returns the value of each parameter, [batch, n], worked out from the first one on."""
        values = torch.zeros_like(problem.count)  # [batch, n]
        for i in range(self.statements):
            total = (values.gather(1, problem.operands[:, i]) * problem.sign[:, i]).sum(1)  # [batch]
            constant = problem.constant[:, i]
            values[:, i] = torch.where(problem.factor[:, i], constant * total, constant + total) % self.modulus
        return values

    def _with_values_so_far(self, answers: Tensor, problem: _Problem, values: Tensor, places: Tensor) -> Tensor:
        """Returns the [batch, length] labels of the answers and of each parameter's value, where its definition ends
        and where its name ends in another definition, if all that it depends on stands before."""
        ends = places[:, :, -1]  # [batch, n]
        complete = ends.clone()  # [batch, n]: where the last of the statements ends that a parameter depends on
        for i in range(self.statements):
            used = torch.where(problem.sign[:, i] != 0, complete.gather(1, problem.operands[:, i]), 0)  # [batch, 3]
            complete[:, i] = complete[:, i].maximum(used.amax(1))
        which = problem.operands.flatten(1)  # [batch, n * 3]
        at = torch.cat([ends, places[:, :, NAME_ENDS].flatten(1)], dim=1)  # [batch, n * 4]
        since = torch.cat([complete, complete.gather(1, which)], dim=1)
        labels = torch.cat([values, values.gather(1, which)], dim=1)
        known = (since <= at) & (at < self.length - QUERY_TOKENS)  # what is not written has no place before the query
        return answers.scatter(1, at, torch.where(known, labels, IGNORE))

    def _written(self, problem: _Problem, indices: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
        """Returns the [batch, length] tokens, with padding in front, and the position of each statement's columns,
        [batch, n, 20], which for columns that are not written is where the query begins.

        Every statement is laid out in the same 20 columns, those of X#Y := c * (X#Y + X#Y + X#Y). and uses some of
        them; then the columns in use are moved together.
        """
        batch, n = problem.count.shape
        mark = {symbol: self.modulus + len(ENTITIES) + k for k, symbol in enumerate((*MARKS, PAD))}
        count, factor = problem.count, problem.factor
        upper, lower = self._entities(problem.edges)  # [batch, n]
        used = problem.operands.view(batch, n * MOST_OPERANDS)  # [batch, n * 3]
        used_upper = upper.gather(1, used).view(batch, n, MOST_OPERANDS)
        used_lower = lower.gather(1, used).view(batch, n, MOST_OPERANDS)

        always = torch.ones_like(factor)
        constant_first = problem.added | factor
        brackets = factor & (count > 1)
        columns: list[tuple[Tensor | int, Tensor]] = [(upper, always), (mark["#"], always), (lower, always)]
        columns += [(mark[":="], always), (problem.constant, constant_first | (count == 0))]
        columns += [(torch.where(factor, mark["*"], mark["+"]), constant_first), (mark["("], brackets)]
        for k in range(MOST_OPERANDS):
            there = count > k
            if k:
                columns.append((torch.where(problem.sign[:, :, k] < 0, mark["-"], mark["+"]), there))
            columns += [(used_upper[:, :, k], there), (mark["#"], there), (used_lower[:, :, k], there)]
        columns += [(mark[")"], brackets), (mark["."], always)]

        layout = torch.stack([_filled(token, count) for token, _ in columns], dim=2)  # [batch, n, 20]
        in_use = torch.stack([there for _, there in columns], dim=2)  # [batch, n, 20]

        # A column goes after the earlier ones of its statement, and after the statements that are written earlier.
        width = self.length - QUERY_TOKENS
        column = in_use.cumsum(2)  # [batch, n, 20], from 1
        tokens_of = column[:, :, -1]  # [batch, n]
        fits = tokens_of.cumsum(1) <= width  # [batch, n]; no statement that fits uses one that does not
        order = stream.sort_keys(indices, n, "order").argsort(dim=1)  # [batch, n]
        ends = (tokens_of * fits).gather(1, order).cumsum(1)  # [batch, n]
        end = torch.zeros_like(ends).scatter(1, order, ends)  # [batch, n]
        start = width - ends[:, -1:] + end - tokens_of  # [batch, n]
        place = torch.where(in_use & fits[:, :, None], start[:, :, None] + column - 1, width)  # [batch, n, 20]
        tokens = torch.full((batch, width + 1), mark[PAD], dtype=torch.int64, device=indices.device)
        tokens = tokens.scatter(1, place.flatten(1), layout.flatten(1))[:, :-1]  # [batch, width]
        asked = [entity.gather(1, problem.needed - 1) for entity in (upper, lower)]  # [batch, 1] each
        sharp, question = _filled(mark["#"], asked[0]), _filled(mark["?"], asked[0])
        return torch.cat([tokens, asked[0], sharp, asked[1], question], dim=1), place

    def _entities(self, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the token ids of both ends of an edge."""
        upper = edges // PER_LEVEL
        lower = (upper // PER_LEVEL + 1) * PER_LEVEL + edges % PER_LEVEL
        return self.modulus + upper, self.modulus + lower

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a problem, with padding in front up to ``length``."""
        ids = {symbol: i for i, symbol in enumerate(self.vocabulary)}
        found = re.findall(r":=|[0-9]+|\S", text)
        for symbol in found:
            if symbol not in ids:
                raise InputError(f"task igsm: {symbol!r} in a problem; allowed are {' '.join(self.vocabulary[:-1])}")
        tokens = [ids[symbol] for symbol in found]
        if len(tokens) > self.length:
            raise InputError(f"task igsm: a problem of {len(tokens)} tokens; at most {self.length} fit")
        return [ids[PAD]] * (self.length - len(tokens)) + tokens

    def solve(self, tokens: Sequence[int]) -> list[int]:
        definitions, query = self._read(tokens)
        values = worked_out(definitions, query, self.modulus)
        return [IGNORE] * (len(tokens) - 1) + [values[query]]

    def render(self, tokens: Sequence[int]) -> str:
        """Returns the problem, its needed statements worked out one after the other, and the answer."""
        definitions, query = self._read(tokens)
        values = worked_out(definitions, query, self.modulus)
        lines = textwrap.wrap(_as_text(definitions, query), 100, break_long_words=False)
        lines.append("")
        depth: dict[str, int] = {}
        for name, value in values.items():
            lines.append(f"{name} = {written(definitions[name])}. ⟹ {name} = {value}.")
            depth[name] = 1 + max((depth[used] for used in names_in(definitions[name])), default=0)
        count = f"{len(values)} of {len(definitions)} statements are needed"
        return "\n".join([*lines, "", f"answer {values[query]}; {count}, {depth[query]} of them one after the other"])

    def document(self, tokens: Sequence[int]) -> str:
        """Returns the problem on one line, a space and the answer: ``E#I := 5. F#K := 3 + E#I. F#K? 1``."""
        definitions, query = self._read(tokens)
        return f"{_as_text(definitions, query)} {worked_out(definitions, query, self.modulus)[query]}"

    def _read(self, tokens: Sequence[int]) -> tuple[dict[str, Expression], str]:
        vocabulary = self.vocabulary
        for token in tokens:
            check_integer(self.name, "token", int(token), 0, len(vocabulary) - 1)
        return Reader([vocabulary[int(token)] for token in tokens]).problem()


@dataclass(frozen=True)
class _OneDifficulty(IGSM):
    """The problems of an IGSM task that need one number of statements, as long as that task's are."""

    whole_length: int = 0

    @property
    def length(self) -> int:
        return self.whole_length


@dataclass(frozen=True)
class _Problem:
    """A batch of problems. Their n parameters stand in an order in which each uses only earlier ones: first those that
    the query needs, of which it is the last, then the distractors."""

    edges: Tensor
    """[batch, n]: which of the 48 edges the parameter is."""
    needed: Tensor
    """[batch, 1]: how many parameters the query needs."""
    count: Tensor
    """[batch, n]: how many parameters the definition uses, 0 to 3."""
    operands: Tensor
    """[batch, n, 3]: which ones, in the order written; those from ``count`` on mean nothing."""
    sign: Tensor
    """[batch, n, 3]: 1 where one is added, -1 where it is subtracted, 0 from ``count`` on."""
    added: Tensor
    """[batch, n] bool: whether a constant is added to the operands."""
    factor: Tensor
    """[batch, n] bool: whether a constant multiplies them."""
    constant: Tensor
    """[batch, n]: that constant, or the whole right side where there are no operands; 0 where there is no constant."""


def _as_text(definitions: dict[str, Expression], query: str) -> str:
    statements = [f"{name} := {written(definition)}." for name, definition in definitions.items()]
    return " ".join([*statements, f"{query}?"])


def _of_query(values: Tensor, problem: _Problem) -> Tensor:
    """Returns the value that the query asks for: [batch, n] values -> [batch]."""
    return values.gather(1, problem.needed - 1)[:, 0]


def _longest_text(statements: int) -> int:
    """Returns the most tokens that statements can have; the first has no parameter to use, the second has one, …"""
    return sum(TOKENS_AROUND + LONGEST_RIGHT_SIDE[min(i, MOST_OPERANDS)] for i in range(statements))


def _shuffled(operands: Tensor, count: Tensor, which: Tensor) -> Tensor:
    """Returns operands, [batch, n, 3], the first ``count`` of each three in the order number ``which``, 0 to 5."""
    a, b, c = operands.unbind(2)
    turned = (count >= 2) & (which % 2 == 1)
    a, b = torch.where(turned, b, a), torch.where(turned, a, b)
    with_a, with_b = (count == 3) & (which // 2 == 0), (count == 3) & (which // 2 == 1)
    a, b, c = torch.where(with_a, c, a), torch.where(with_b, c, b), torch.where(with_a, a, torch.where(with_b, b, c))
    return torch.stack([a, b, c], dim=2)


def _filled(token: Tensor | int, like: Tensor) -> Tensor:
    return token if isinstance(token, Tensor) else torch.full_like(like, token)
