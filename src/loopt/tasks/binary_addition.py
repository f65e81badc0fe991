"""Two binary numbers added by chain of thought, and without one: the example of Theorem 5.4.

The sum comes least significant bit first, one token a bit. In 1c0 the bit is 1 and the carry 0:

>>> chain = BinaryAddition(bits=3)
>>> print(chain.render(chain.encode("110+011=")))
110+011: sum 1001, by 1c0 0c1 0c1

As a ``chain`` each token of the sum is generated after the one before it. With ``dummies`` a # stands in place of each,
and all of them are answered at once, where they stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.random_bits import Stream
from loopt.tasks.base import IGNORE, Batch, Task, check_choice, check_integer

WORDS = ("0", "1", "+", "=", "0c0", "1c0", "0c1", "1c1")
"""The last four stand for 0 to 3, the sum of two bits and a carry."""
PLUS, EQUALS, FIRST_SUM = 2, 3, 4
DUMMY = len(WORDS)

Form = Literal["chain", "dummies"]


@dataclass(frozen=True)
class BinaryAddition(Task):
    name: ClassVar[str] = "binary_addition"

    bits: int = 6
    """How many bits each of the two numbers has."""
    form: Form = "chain"
    """chain: the sum is written out, token by token. dummies: a # stands in the place of each of its tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self.name, "bits", self.bits, 1, 64)
        check_choice(self.name, "form", self.form, get_args(Form))

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return WORDS if self.form == "chain" else (*WORDS, "#")

    @property
    def length(self) -> int:
        return self._question + self.bits - (self.form == "chain")  # what the last token is followed by is not asked

    @property
    def _question(self) -> int:
        return 2 * self.bits + 2

    def draw(self, indices: Tensor, stream: Stream) -> Batch:
        a, b = (stream.integers(indices, self.bits, 2, name) for name in ("a", "b"))  # [batch, bits], highest first
        carry, sums = torch.zeros_like(a[:, :1]), []
        for j in reversed(range(self.bits)):
            total = a[:, j : j + 1] + b[:, j : j + 1] + carry
            carry = total // 2
            sums.append(FIRST_SUM + total)
        plus, equals = torch.full_like(carry, PLUS), torch.full_like(carry, EQUALS)
        written = sums[:-1] if self.form == "chain" else [torch.full_like(carry, DUMMY)] * self.bits
        tokens = torch.cat([a, plus, b, equals, *written], dim=1)
        unasked = [torch.full_like(carry, IGNORE)] * (self.length - self.bits)
        labels = torch.cat([*unasked, *sums], dim=1)
        return Batch(tokens, labels, labels)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        """Returns the tokens of the sum, as far as there are places for them."""
        tokens = [int(token) for token in tokens]
        a, b = self._read(tokens)
        labels = [IGNORE] * (self._question - (self.form == "chain"))
        for j in range(len(tokens) - len(labels)):
            low = 2**j
            labels.append(FIRST_SUM + a // low % 2 + b // low % 2 + (a % low + b % low) // low)
        return labels

    def render(self, tokens: Sequence[int]) -> str:
        """Returns the numbers, their sum, and the tokens that give it."""
        question = [int(token) for token in tokens[: self._question]]
        a, b = self._read(question)
        labels = replace(self, form="chain").solve([*question, *[FIRST_SUM] * (self.bits - 1)])
        chain = " ".join(WORDS[label] for label in labels[-self.bits :])
        return f"{a:0{self.bits}b}+{b:0{self.bits}b}: sum {a + b:b}, by {chain}"

    def _read(self, tokens: list[int]) -> tuple[int, int]:
        """Returns the two numbers of an example."""
        for token in tokens:
            check_integer(self.name, "token", token, 0, self.vocab_size - 1)
        words = [self.vocabulary[token] for token in tokens]
        a, b = words[: self.bits], words[self.bits + 1 : self._question - 1]
        signs = [*words[self.bits : self.bits + 1], *words[self._question - 1 : self._question]]
        places = set(WORDS[FIRST_SUM:]) if self.form == "chain" else {"#"}
        if signs != ["+", "="] or not {*a, *b} <= {"0", "1"} or not {*words[self._question :]} <= places:
            question = f"two numbers of {self.bits} bits, as in {'1' * self.bits}+{'0' * self.bits}="
            after = "tokens of the sum" if self.form == "chain" else "a # for each token of the sum"
            raise InputError(f"task {self.name}: {' '.join(words[:40])}; allowed are {question}, and then {after}")
        if len(tokens) > self.length:
            raise InputError(f"task {self.name}: {len(tokens)} tokens; allowed are up to {self.length}")
        return int("".join(a), 2), int("".join(b), 2)
