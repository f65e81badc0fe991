"""Variable assignment: find a variable's value through a chain of copies.

At the first level, each variable is set to a number. At every further level as many new variables each copy a different
one of the level before. The question is about a variable of the last level, ``depth`` copies away from its number. The
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

The other rendering is Python, where a comment says what ``print`` prints. With ``shots``, solved problems come first,
and with ``questions`` each problem asks for several variables:

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
is right one time in ``variables``. With 5 variables, that is where the paper's weakest models are.
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
"""None stands for the variable asked for; the label is at the last symbol."""
MAX_NUMBER = 1000


@dataclass(frozen=True)
class Problem:
    """One set of assignments and the question about it."""

    assignments: tuple[tuple[str, str], ...]
    """Each variable with what it is set to: a number, or a variable that was set before."""
    asked: str
    position: int
    """The position among the tokens whose label is the answer."""
    repeats: bool = False
    """Whether the assignments are those of the problem before, and only the question is written."""

    def chain(self) -> list[str]:
        """Returns the variable asked for, the ones it copies, and the number at the end."""
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
    questions: int = 1
    """How many different variables of the last level each problem asks for, one after the other: more of them give text
    to train on more answers for its tokens."""
    order: Order = "levels"
    """levels: first all numbers, then all copies of these, and so on. shuffled: any order that sets a variable before
    it is copied; places then give answers away (at depth 1, the right one of 5 candidates 37% of the time)."""
    letters: int = 26
    """How many letters there are to name variables: a to z, then A to Z. Each level takes new ones."""
    largest: int = 25
    """The largest number; each number from 1 is one token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, "rendering", self.rendering, get_args(Rendering))
        check_choice(self.name, "order", self.order, get_args(Order))
        check_integer(self.name, "depth", self.depth, 0)
        check_integer(self.name, "shots", self.shots, 0)
        check_integer(self.name, "letters", self.letters, 2, len(LETTERS))
        check_integer(self.name, "largest", self.largest, 2, MAX_NUMBER)
        check_integer(self.name, "variables", self.variables, 2, self.largest)
        check_integer(self.name, "questions", self.questions, 1, self.variables)
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
        return (self.depth + 1) * self.variables

    @property
    def _problem_length(self) -> int:
        """Returns the tokens of a problem: 4 for each assignment, and for each question itself, answer and newline."""
        return 4 * self._assignments + self.questions * (len(QUESTION[self.rendering]) + 2)

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

        # Nothing that is written tells the number of a chain, so chains one after the other are as random as any.
        first = stream.integers(indices, problems, self.variables, "question")[..., None]
        chosen = (first + torch.arange(self.questions, device=indices.device)) % self.variables
        asked, answer = names[:, :, -1].gather(2, chosen), values.gather(2, chosen)  # [batch, problems, questions]

        def constant(like: Tensor, symbol: str) -> Tensor:
            return torch.full_like(like, self._id(symbol))

        separator = constant(left, SEPARATOR[self.rendering])
        statements = torch.stack([left, constant(left, "="), right, separator], dim=-1).flatten(2)
        question = [constant(asked, symbol) if symbol else asked for symbol in QUESTION[self.rendering]]
        solved = torch.stack([*question, answer, constant(answer, "\n")], dim=-1)  # [batch, problems, questions, …]
        tokens = torch.cat([statements, solved.flatten(2)], dim=2)  # [batch, problems, …]

        labels_of_solved = torch.full_like(solved, IGNORE)
        labels_of_solved[..., -3] = answer  # at the end of the question
        labels = torch.cat([torch.full_like(statements, IGNORE), labels_of_solved.flatten(2)], dim=2)
        tokens, labels = (one.flatten(1)[:, : self.length].contiguous() for one in (tokens, labels))
        answers = torch.full_like(labels, IGNORE)
        answers[:, -1] = labels[:, -1]
        return Batch(tokens, labels, answers)

    def _permutations(self, indices: Tensor, stream: Stream, purpose: str, *shape: int) -> Tensor:
        """Draws [batch, problems, *shape]: along the last dimension, 0 to its size - 1 in random order."""
        draws = torch.Size((self.shots + 1, *shape))
        return stream.sort_keys(indices, draws.numel(), purpose).view(len(indices), *draws).argsort(dim=-1)

    def _statement_order(self, indices: Tensor, stream: Stream) -> Tensor:
        """Draws an order of the statements, [batch, problems, assignments], each numbered level · variables + chain."""
        levels = self.depth + 1
        if self.order == "levels":
            chain = self._permutations(indices, stream, "order", levels, self.variables)
            level = torch.arange(levels, device=indices.device)[:, None]
            return (level * self.variables + chain).flatten(2)
        # Any order of the chains will do, as long as the statements of each chain follow their levels.
        chain = self._permutations(indices, stream, "order", self._assignments) % self.variables
        each_chain = torch.arange(self.variables, device=indices.device)
        is_chain = chain[..., None] == each_chain  # [batch, problems, assignments, variables]
        level = is_chain.long().cumsum(dim=2).gather(3, chain[..., None]).squeeze(3) - 1
        return level * self.variables + chain

    def solve(self, tokens: Sequence[int]) -> list[int]:
        labels = [IGNORE] * len(tokens)
        for problem in self._read(tokens):
            value: dict[str, int] = {}
            for variable, set_to in problem.assignments:
                value[variable] = value[set_to] if set_to in value else int(set_to)
            labels[problem.position] = value[problem.asked] - 1
        return labels

    def render(self, tokens: Sequence[int]) -> str:
        """Returns the text, and how the last question is answered."""
        problem = self._read(tokens)[-1]
        chain = problem.chain()
        copies = "1 copy" if len(chain) == 3 else f"{len(chain) - 2} copies"
        candidates = len(self.choices(tokens))
        lines = [f"{copies} between the question and its {candidates} candidates: answer {chain[-1]}", ""]
        for line in self.prompt(tokens).splitlines():
            lines += textwrap.wrap(line, 100)
        return "\n".join([*lines, "", *textwrap.wrap(" = ".join(chain), 100)])

    def document(self, tokens: Sequence[int]) -> str:
        """Returns the prompt, a space and the answer."""
        return "\n".join(map(self._solved, self._read(tokens)))

    def prompt(self, tokens: Sequence[int]) -> str:
        """Returns one example as the prompt of a language model, which is to continue with a space and the answer."""
        *shots, asked = self._read(tokens)
        return "\n".join([*map(self._solved, shots), self._text(asked)])

    def choices(self, tokens: Sequence[int]) -> list[str]:
        """Returns the candidates for the answer to the last question: its problem's numbers, in the order written."""
        numbers = (set_to for _, set_to in self._read(tokens)[-1].assignments if set_to.isdecimal())
        return list(dict.fromkeys(numbers))

    def answer(self, tokens: Sequence[int]) -> str:
        """Returns the right one of the choices."""
        return self._read(tokens)[-1].chain()[-1]

    def _solved(self, problem: Problem) -> str:
        return f"{self._text(problem)} {problem.chain()[-1]}"

    def _text(self, problem: Problem) -> str:
        assignments = () if problem.repeats else problem.assignments
        if self.rendering == "math":
            return ", ".join([*(f"{one}={set_to}" for one, set_to in assignments), f"{problem.asked}=?"])
        return "\n".join([*(f"{one} = {set_to}" for one, set_to in assignments), f"print({problem.asked})  #"])

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a text in this rendering; spaces do not count, newlines do."""
        ids = {symbol: i for i, symbol in enumerate(self.vocabulary)}
        symbols = re.findall(r"print|[0-9]+|\n|[^ ]", text)
        for symbol in symbols:
            if symbol not in ids:
                raise InputError(f"task assignment: {symbol!r} in the text is no token of the vocabulary")
        return [ids[symbol] for symbol in symbols]

    def _read(self, tokens: Sequence[int]) -> list[Problem]:
        ids = [int(token) for token in tokens]
        vocabulary = self.vocabulary
        for token in ids:
            check_integer(self.name, "token", token, 0, len(vocabulary) - 1)
        return _Reader([vocabulary[token] for token in ids], self.rendering).problems()


class _Reader:
    """Parses (problem answer newline)* problem;  problem = (variable "=" (number | variable) separator)* question.

    A problem without assignments asks about those before."""

    def __init__(self, symbols: list[str], rendering: Rendering) -> None:
        self.symbols = symbols
        self.rendering = rendering
        self.at = 0

    def problems(self) -> list[Problem]:
        problems = [self.problem()]
        while self.at < len(self.symbols):
            self.take_number()
            self.take("\n")
            problems.append(self.problem(before=problems[-1]))
        return problems

    def problem(self, before: Problem | None = None) -> Problem:
        repeats = before is not None and self.at_question()
        assignments: dict[str, str] = dict(before.assignments) if before is not None and repeats else {}
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
        return Problem(tuple(assignments.items()), asked, self.at - 1, repeats)

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
