"""Symbolic i-GSM: a page of definitions in no order, and the value of one of them is asked for, modulo 7.

Entities A to P stand on four levels, four to a level. An edge between neighboring levels, such as E#I, is a
parameter; each parameter of a problem is defined once, from a constant or from other parameters. Those that the query
does not need are distractors. The answer is one number, with no steps written down before it. docs/igsm.md says how
problems are drawn, with statistics: the two laws are in `igsm_light.py` and `igsm_even.py`.

>>> task = IGSM()
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
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.random_bits import Stream
from loopt.tasks.base import IGNORE, Batch, Supervision, Task, check_choice, check_integer
from loopt.tasks.igsm_even import EDGES, MOST_OPERANDS, EvenLaw
from loopt.tasks.igsm_light import LEVELS, WIDTHS, LightLaw
from loopt.tasks.igsm_problem import (
    MARKS,
    PER_LEVEL,
    QUERY_TOKENS,
    of_query,
    statements_that_fit,
    values_of,
    with_values_so_far,
    write,
)
from loopt.tasks.igsm_text import ENTITIES, PAD, Expression, Reader, names_in, worked_out, written

Law = Literal["light", "even"]
Query = Literal["last", "any"]

MODULI = (3, 5, 7, 11, 13, 17, 19, 23)
SETTINGS_OF = {"light": ("operations", "edges", "levels"), "even": ("statements", "needed")}
"""The settings that a law has, and the other one has not."""


@dataclass(frozen=True)
class IGSM(Task):
    name: ClassVar[str] = "igsm"

    modulus: int = 7
    """The modulus of the arithmetic: an odd prime, at most 23."""
    law: Law = "light"
    """How problems are drawn. light: as the cited generator draws them in its style of this name, most of them short.
    even: every number of needed statements is equally likely."""
    operations: int = 15
    """Law light: the most operations an answer takes; their number is the smaller of two draws from 1 to this."""
    edges: int = 20
    """Law light: the most parameters; their number is the smaller of two draws up to this."""
    levels: tuple[int, int] = (4, 4)
    """Law light: the fewest and the most levels that entities stand on."""
    statements: int = 12
    """Law even: how many parameters are defined."""
    needed: tuple[int, int] = (1, 10)
    """Law even: the fewest and the most statements the query depends on, its own included; all are equally likely."""
    query: Query = "last"
    """Which parameter is asked for. last: the one that the problem is drawn around, which needs as many statements as
    the law says. any: each that is defined, with equal chances, as the paper words it; many of them need few."""
    supervision: Supervision = "last"
    """last: the answer is the only label. every: the value of a parameter is also a label wherever a statement has just
    named or defined it, if it follows from the tokens so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.modulus not in MODULI or isinstance(self.modulus, bool | float):
            raise InputError(f"task igsm: modulus={self.modulus!r}; allowed are {', '.join(map(str, MODULI))}")
        check_choice(self.name, "law", self.law, get_args(Law))
        check_choice(self.name, "query", self.query, get_args(Query))
        check_choice(self.name, "supervision", self.supervision, get_args(Supervision))
        self._read_pair("levels", 2, LEVELS)
        check_integer(self.name, "edges", self.edges, *self._edges_allowed())
        check_integer(self.name, "operations", self.operations, 1, self.edges)
        check_integer(self.name, "statements", self.statements, MOST_OPERANDS, EDGES)
        self._read_pair("needed", 1, self.statements)
        defaults = {field.name: field.default for field in fields(IGSM)}
        for law, settings in SETTINGS_OF.items():
            for setting in settings if law != self.law else ():
                if (given := getattr(self, setting)) != defaults[setting]:
                    raise InputError(f"task igsm: {setting}={given!r} with law={self.law!r}; allowed with law={law!r}")

    def _read_pair(self, field: str, at_least: int, at_most: int) -> None:
        """Checks a setting that is the fewest and the most of something, and makes it a tuple: JSON gives a list."""
        given = getattr(self, field)
        pair = tuple(given) if isinstance(given, list | tuple) else (given,)
        object.__setattr__(self, field, pair)
        if len(pair) != 2:
            raise InputError(f"task igsm: {field}={pair!r}; allowed are two integers, the fewest and the most")
        check_integer(self.name, field, pair[0], at_least, at_most)
        check_integer(self.name, field, pair[1], pair[0], at_most)

    def _edges_allowed(self) -> tuple[int, int]:
        """Returns the fewest edges that leave one for every entity below another, and as many as there can be."""
        pairs = self.levels[1] - 1
        return pairs * WIDTHS[-1], pairs * PER_LEVEL**2

    @property
    def _whole_law(self) -> LightLaw | EvenLaw:
        if self.law == "light":
            return LightLaw(self.operations, self.edges, self.levels)
        return EvenLaw(self.statements, self.needed)

    @property
    def _law(self) -> LightLaw | EvenLaw:
        """Returns what problems are drawn by."""
        return self._whole_law

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Returns the tokens by id; numbers come first, so that each is its own id, and an answer its own label."""
        return (*map(str, range(self.modulus)), *ENTITIES, *MARKS, PAD)

    @property
    def length(self) -> int:
        return self._whole_law.room + QUERY_TOKENS

    @property
    def difficulties(self) -> dict[str, Task]:
        if self.query == "any":  # a law knows how much the last one needs
            return {}
        settings = {field.name: getattr(self, field.name) for field in fields(IGSM)}
        return {name: _OneDifficulty(**settings, difficulty=name) for name in self._whole_law.difficulties}

    def draw(self, indices: Tensor, stream: Stream) -> Batch:
        problem = self._law.draw(indices, stream, self.modulus)
        if self.query == "any":
            written = statements_that_fit(problem, self.length)  # [batch, 1]
            problem = replace(problem, query=stream.integers(indices, 1, written, "query"))
        order = stream.sort_keys(indices, problem.count.shape[1], "order").argsort(dim=1)  # [batch, n]
        tokens, places = write(problem, order, self.modulus, self.length)  # [batch, length] and [batch, n, columns]
        values = values_of(problem, self.modulus)  # [batch, n]
        answers = torch.full_like(tokens, IGNORE)
        answers[:, -1] = of_query(values, problem)
        if self.supervision == "last":
            return Batch(tokens, answers, answers)
        return Batch(tokens, with_values_so_far(answers, problem, values, places), answers)

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
    """The problems of an IGSM task that have one difficulty, as long as that task's are."""

    difficulty: str = ""

    @property
    def _law(self) -> LightLaw | EvenLaw:
        return self._whole_law.difficulties[self.difficulty]


def _as_text(definitions: dict[str, Expression], query: str) -> str:
    statements = [f"{name} := {written(definition)}." for name, definition in definitions.items()]
    return " ".join([*statements, f"{query}?"])
