"""Variable assignment: find a variable's value through a chain of copies.

Some variables get a number each. At every further level as many new ones each copy one of the level before, no two
the same. The question is about a variable of the last level, which is ``depth`` copies away from its number. The
examples of the paper, at depths 0 and 1, with the chain that leads to the answer:

>>> task = VariableAssignment()
>>> print(task.render(task.encode("a=1, b=2, c=6, b=?")))
0 copies between the question and its 3 candidates: answer 2
<BLANKLINE>
a=1, b=2, c=6, b=?
<BLANKLINE>
b = 2
>>> print(task.render(task.encode("a=1, b=2, c=a, d=b, d=?")))
1 copy between the question and its 2 candidates: answer 2
<BLANKLINE>
a=1, b=2, c=a, d=b, d=?
<BLANKLINE>
d = b = 2

The other rendering is Python, where a comment says what ``print`` prints. With ``shots``, solved problems come first:

>>> task = VariableAssignment(rendering="code", variables=2, shots=1)
>>> tokens = task.encode('''a = 3
... b = 7
... d = b
... c = a
... print(c)  # 3
... f = 2
... b = 9
... k = b
... a = f
... print(k)  #''')
>>> task.prompt(tokens).splitlines()[-2:]
['a = f', 'print(k)  #']
>>> task.choices(tokens), task.answer(tokens)
(['2', '9'], '9')

Levels follow one another, so the place of a statement says nothing about the answer and a guess among the candidates
is right one time in ``variables``. That, with 5 variables, is where the paper's weakest models are.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NoReturn, get_args

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.random_bits import Stream
from loopt.tasks.base import IGNORE, Batch, Task, check_choice, check_integer

Rendering = Literal["math", "code"]
Order = Literal["levels", "shuffled"]

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
SYMBOLS = ("=", ",", "?", "\n", "print", "(", ")", "#")
SEPARATOR = {"math": ",", "code": "\n"}
QUESTION = {"math": (None, "=", "?"), "code": ("print", "(", None, ")", "#")}
"""None is where the variable asked for stands; the label is that of the last symbol."""
MAX_NUMBER = 1000


@dataclass(frozen=True)
class Problem:
    """One set of assignments and the question about it."""

    assignments: tuple[tuple[str, str], ...]
    """Variable and what it is set to: a number, or a variable that was set before."""
    asked: str
    position: int
    """Where, among the tokens, the answer is asked for."""

    def chain(self) -> list[str]:
        """From the variable asked for through the ones copied to the number."""
        set_to = dict(self.assignments)
        chain = [self.asked]
        while chain[-1] in set_to:
            chain.append(set_to[chain[-1]])
        return chain


@dataclass(frozen=True)
class VariableAssignment(Task):
    name: ClassVar[str] = "assignment"

    depth: int = 1
    """How many copies lie between the variable asked for and its number."""
    variables: int = 5
    """How many variables each level has; as many different numbers are candidates for the answer."""
    rendering: Rendering = "math"
    """math: a=1, b=a, b=?  code: Python, one statement to a line, which prints the answer."""
    shots: int = 0
    """How many solved problems come before the question."""
    order: Order = "levels"
    """levels: first all numbers, then all copies of these, and so on. shuffled: any order that sets a variable before
    it is copied; places then give answers away (at depth 1, of 5 candidates, the right one 37% of the time)."""
    letters: int = 26
    """From how many letters variables are named: a to z, then A to Z. Each level takes new ones."""
    largest: int = 25
    """The numbers are 1 to this; each is one token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, "rendering", self.rendering, get_args(Rendering))
        check_choice(self.name, "order", self.order, get_args(Order))
        check_integer(self.name, "depth", self.depth, 0)
        check_integer(self.name, "shots", self.shots, 0)
        check_integer(self.name, "letters", self.letters, 2, len(LETTERS))
        check_integer(self.name, "largest", self.largest, 2, MAX_NUMBER)
        check_integer(self.name, "variables", self.variables, 2, self.largest)
        if self.letters < self._assignments:
            raise InputError(
                f"task assignment: depth={self.depth} with variables={self.variables} needs {self._assignments} "
                f"letters; letters={self.letters}, and at most {len(LETTERS)} are allowed"
            )

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return (*(str(number) for number in range(1, self.largest + 1)), *LETTERS[: self.letters], *SYMBOLS)

    @property
    def length(self) -> int:
        return (self.shots + 1) * self._problem_length - 2  # the last problem is not followed by answer and newline

    @property
    def _assignments(self) -> int:
        """How many one problem has."""
        return (self.depth + 1) * self.variables

    @property
    def _problem_length(self) -> int:
        """A variable, ``=``, what it is set to and a separator, for each; the question; its answer and a newline."""
        return 4 * self._assignments + len(QUESTION[self.rendering]) + 2

    def _id(self, symbol: str) -> int:
        return self.largest + self.letters + SYMBOLS.index(symbol)

    def draw(self, indices: Tensor, stream: Stream) -> Batch:
        batch, problems, levels = len(indices), self.shots + 1, self.depth + 1
        # Chain c is names[:, :, 0, c], names[:, :, 1, c] and so on; the first of these is set to values[:, :, c].
        shuffled_letters = self._permutations(indices, stream, "letters", self.letters)  # [batch, problems, letters]
        names = self.largest + shuffled_letters[..., : self._assignments]
        names = names.view(batch, problems, levels, self.variables)
        values = self._permutations(indices, stream, "values", self.largest)[..., : self.variables]

        set_to = torch.cat([values[:, :, None], names[:, :, :-1]], dim=2)  # [batch, problems, levels, variables]
        order = self._statement_order(indices, stream)  # [batch, problems, assignments]
        left, right = names.flatten(2).gather(2, order), set_to.flatten(2).gather(2, order)

        chosen = stream.integers(indices, problems, self.variables, "question")[..., None]  # [batch, problems, 1]
        asked, answer = names[:, :, -1].gather(2, chosen), values.gather(2, chosen)  # [batch, problems, 1]

        def constant(like: Tensor, symbol: str) -> Tensor:
            return torch.full_like(like, self._id(symbol))

        separator = constant(left, SEPARATOR[self.rendering])
        statements = torch.stack([left, constant(left, "="), right, separator], dim=-1).flatten(2)
        question = [constant(asked, symbol) if symbol else asked for symbol in QUESTION[self.rendering]]
        tokens = torch.cat([statements, *question, answer, constant(answer, "\n")], dim=2)  # [batch, problems, …]

        labels = torch.full_like(tokens, IGNORE)
        labels[..., -3] = answer[..., 0]  # at the end of the question
        tokens, labels = (one.flatten(1)[:, : self.length].contiguous() for one in (tokens, labels))
        answers = torch.full_like(labels, IGNORE)
        answers[:, -1] = labels[:, -1]
        return Batch(tokens, labels, answers)

    def _permutations(self, indices: Tensor, stream: Stream, purpose: str, *shape: int) -> Tensor:
        """[batch, problems, *shape]: along the last dimension, 0 to its size - 1 in random order."""
        draws = torch.Size((self.shots + 1, *shape))
        return stream.sort_keys(indices, draws.numel(), purpose).view(len(indices), *draws).argsort(dim=-1)

    def _statement_order(self, indices: Tensor, stream: Stream) -> Tensor:
        """[batch, problems, assignments]: statement number level · variables + chain, in the order they are written."""
        levels = self.depth + 1
        if self.order == "levels":
            chain = self._permutations(indices, stream, "order", levels, self.variables)
            level = torch.arange(levels, device=indices.device)[:, None]
            return (level * self.variables + chain).flatten(2)
        # Any order of the chains' statements will do, if each chain's own are then taken in the order of their levels.
        chain = self._permutations(indices, stream, "order", self._assignments) % self.variables
        each_chain = torch.arange(self.variables, device=indices.device)
        is_chain = chain[..., None] == each_chain  # [batch, problems, assignments, variables]
        level = is_chain.long().cumsum(dim=2).gather(3, chain[..., None]).squeeze(3) - 1
        return level * self.variables + chain

    def solve(self, tokens: Sequence[int]) -> list[int]:
        """Run the assignments of each problem, one after the other."""
        labels = [IGNORE] * len(tokens)
        for problem in self._read(tokens):
            value: dict[str, int] = {}
            for variable, set_to in problem.assignments:
                value[variable] = value[set_to] if set_to in value else int(set_to)
            labels[problem.position] = value[problem.asked] - 1
        return labels

    def render(self, tokens: Sequence[int]) -> str:
        """The text, and how the last question is answered."""
        problem = self._read(tokens)[-1]
        chain = problem.chain()
        copies = "1 copy" if len(chain) == 3 else f"{len(chain) - 2} copies"
        candidates = len(self.choices(tokens))
        lines = [f"{copies} between the question and its {candidates} candidates: answer {chain[-1]}", ""]
        for line in self.prompt(tokens).splitlines():
            lines += textwrap.wrap(line, 100)
        return "\n".join([*lines, "", *textwrap.wrap(" = ".join(chain), 100)])

    def prompt(self, tokens: Sequence[int], worded: bool = False) -> str:
        """One example as text for a language model, which is to go on with a space and the answer.

        ``worded`` puts each problem into sentences, as Saunshi et al. (2024) did for the evaluation that the paper
        repeats. We have not seen their data; the wording follows an account of their appendix by others.
        """
        shots = []
        for problem in self._read(tokens):
            text = self._worded(problem) if worded else self._plain(problem)
            shots.append(f"{text} {problem.chain()[-1]}")
        last = shots[-1].rpartition(" ")[0]
        return ("\n\n" if worded else "\n").join([*shots[:-1], last])

    def choices(self, tokens: Sequence[int]) -> list[str]:
        """The candidates for the answer to the last question: its problem's numbers, in the order they are written."""
        numbers = (set_to for _, set_to in self._read(tokens)[-1].assignments if set_to.isdecimal())
        return list(dict.fromkeys(numbers))

    def answer(self, tokens: Sequence[int]) -> str:
        """The right one of the choices."""
        return self._read(tokens)[-1].chain()[-1]

    def _plain(self, problem: Problem) -> str:
        if self.rendering == "math":
            return ", ".join([*(f"{one}={set_to}" for one, set_to in problem.assignments), f"{problem.asked}=?"])
        return "\n".join([*(f"{one} = {set_to}" for one, set_to in problem.assignments), f"print({problem.asked})  #"])

    def _worded(self, problem: Problem) -> str:
        if self.rendering == "math":
            equations = "\n".join(f"{one}={set_to}" for one, set_to in problem.assignments)
            return (
                f"The following is a set of simple mathematical equations.\n\n{equations}\n\n"
                f"What is the numerical value of {problem.asked}?\nAnswer:"
            )
        program = "\n".join(f"{one} = {set_to}" for one, set_to in problem.assignments)
        return (
            "The following is a very short Python program. Use the program to resolve the value of the variable in "
            f"the question.\n\nProgram:\n{program}\n\nQuestion:\nWhat is the value of {problem.asked}?\nAnswer:"
        )

    def encode(self, text: str) -> list[int]:
        """The tokens of a text in this rendering; spaces do not count, and where a newline counts it is written."""
        numbers = {symbol: i for i, symbol in enumerate(self.vocabulary)}
        symbols = re.findall(r"print|[0-9]+|\n|[^ ]", text)
        for symbol in symbols:
            if symbol not in numbers:
                raise InputError(f"task assignment: {symbol!r} in the text is no symbol of the vocabulary")
        return [numbers[symbol] for symbol in symbols]

    def _read(self, tokens: Sequence[int]) -> list[Problem]:
        ids = [int(token) for token in tokens]
        vocabulary = self.vocabulary
        for token in ids:
            check_integer(self.name, "token", token, 0, len(vocabulary) - 1)
        return _Reader([vocabulary[token] for token in ids], self.rendering).problems()


class _Reader:
    """text = (problem answer newline)* problem;  problem = (variable "=" (number | variable) separator)* question"""

    def __init__(self, symbols: list[str], rendering: Rendering) -> None:
        self.symbols = symbols
        self.rendering = rendering
        self.at = 0

    def problems(self) -> list[Problem]:
        problems = [self.problem()]
        while self.at < len(self.symbols):
            self.take_number()
            self.take("\n")
            problems.append(self.problem())
        return problems

    def problem(self) -> Problem:
        assignments: dict[str, str] = {}
        while not self.at_question():
            variable = self.take_variable(new_to=assignments)
            self.take("=")
            assignments[variable] = (
                self.take_number() if self.peek().isdecimal() else self.take_variable(of=assignments)
            )
            self.take(SEPARATOR[self.rendering])
        asked = ""
        for symbol in QUESTION[self.rendering]:
            if symbol:
                self.take(symbol)
            else:
                asked = self.take_variable(of=assignments)
        return Problem(tuple(assignments.items()), asked, self.at - 1)

    def at_question(self) -> bool:
        return self.peek() == "print" if self.rendering == "code" else self.symbols[self.at + 2 : self.at + 3] == ["?"]

    def peek(self) -> str:
        return self.symbols[self.at] if self.at < len(self.symbols) else ""

    def take(self, symbol: str) -> None:
        if self.peek() != symbol:
            self.fail(repr(symbol))
        self.at += 1

    def take_number(self) -> str:
        if not self.peek().isdecimal():
            self.fail("a number")
        self.at += 1
        return self.symbols[self.at - 1]

    def take_variable(self, of: Container[str] = LETTERS, new_to: Container[str] = ()) -> str:
        variable = self.peek()
        if not variable or variable not in LETTERS:
            self.fail("a variable")
        if variable not in of:
            self.fail("a variable that has been set")
        if variable in new_to:
            self.fail("a variable that has not been set")
        self.at += 1
        return variable

    def fail(self, expected: str) -> NoReturn:
        found = repr(self.peek()) if self.peek() else "the end"
        raise InputError(f"task assignment: token {self.at + 1} is {found} where {expected} should stand")
