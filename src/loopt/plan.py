"""Loop plans: which layers run, in which order.

A block of k layers looped L times, the paper's (k⊗L), is written ``kxL``. Blocks are joined with ``+``, and
blocks of one size in brackets, so the paper's middle loop (4⊗1,4,1) is ``4x(1,4,1)``:

>>> LoopPlan.parse("4x6").depth
24
>>> plan = LoopPlan.parse("(4⊗1,4,1)")
>>> str(plan), plan.distinct_layers, plan.depth
('4x(1,4,1)', 12, 24)
>>> str(plan.with_loops(8))
'4x(1,8,1)'

One block of a plan is the loopable one, the block whose loops can be chosen at inference. It is the only block,
or the only one looped more than once; where that does not tell, a ``*`` after its loops does: ``2x3*+2x3``.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn

from loopt.errors import PlanError

MAX_DEPTH = 10_000


@dataclass(frozen=True)
class Block:
    """Layers that are looped together, and how often."""

    layers: int
    loops: int


@dataclass(frozen=True)
class Pass:
    """One loop of one block, with the layers it runs."""

    block: int
    loop: int
    layers: range


@dataclass(frozen=True)
class Step:
    """One run of one layer."""

    layer: int
    block: int
    loop: int


@dataclass(frozen=True)
class LoopPlan:
    """The blocks of a model in the order they run, and which of them can be looped longer or shorter."""

    blocks: tuple[Block, ...]
    loopable: int | None = None
    """The index of the block whose loops ``with_loops`` changes; None where the plan does not say."""

    def __post_init__(self) -> None:
        if not self.blocks:
            raise PlanError("plan: no blocks; a plan needs at least one, such as 4x6")
        for block in self.blocks:
            if block.layers < 1 or block.loops < 1:
                raise PlanError(f"plan: block {block.layers}x{block.loops}: layers and loops must be 1 or more")
        if self.depth > MAX_DEPTH:
            raise PlanError(f"plan: {self} runs {self.depth} layers; at most {MAX_DEPTH} are allowed")
        if self.loopable is None:
            object.__setattr__(self, "loopable", _only_candidate(self.blocks))
        elif not 0 <= self.loopable < len(self.blocks):
            raise PlanError(f"plan: loopable={self.loopable}; allowed are 0 to {len(self.blocks) - 1}")

    @classmethod
    def parse(cls, text: str) -> LoopPlan:
        """Returns the plan written ``4x6``, ``4x(1,4,1)``, ``2x1+4x5+2x1``, or as in the paper, ``(4⊗1,4,1)``."""
        return _Parser(text).plan()

    @property
    def depth(self) -> int:
        """Returns the effective depth: how many layers a token passes through."""
        return sum(block.layers * block.loops for block in self.blocks)

    @property
    def distinct_layers(self) -> int:
        """Returns how many layers have weights of their own."""
        return sum(block.layers for block in self.blocks)

    @cached_property
    def passes(self) -> tuple[Pass, ...]:
        """Returns every loop of every block, in the order they run."""
        passes: list[Pass] = []
        first = 0
        for index, block in enumerate(self.blocks):
            layers = range(first, first + block.layers)
            passes += [Pass(index, loop, layers) for loop in range(block.loops)]
            first += block.layers
        return tuple(passes)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Returns every run of every layer, in order."""
        return tuple(Step(layer, one.block, one.loop) for one in self.passes for layer in one.layers)

    def with_loops(self, loops: int) -> LoopPlan:
        """Returns the plan with the loopable block run ``loops`` times."""
        loopable = self._loopable(f"loop {loops} times")
        if not isinstance(loops, int) or loops < 1:
            raise PlanError(f"plan: {self} with loops={loops!r}; loops must be 1 or more")
        blocks = list(self.blocks)
        blocks[loopable] = replace(blocks[loopable], loops=loops)
        return LoopPlan(tuple(blocks), loopable)

    def around_loop(self) -> tuple[tuple[Pass, ...], tuple[Pass, ...], tuple[Pass, ...]]:
        """Returns the passes before the loopable block, its own, and those after it."""
        loopable = self._loopable("read out after each loop")
        before = sum(block.loops for block in self.blocks[:loopable])
        after = before + self.blocks[loopable].loops
        return self.passes[:before], self.passes[before:after], self.passes[after:]

    def _loopable(self, purpose: str) -> int:
        if self.loopable is None:
            raise PlanError(
                f"plan: {self} does not tell which of its {len(self.blocks)} blocks to {purpose}; "
                "mark one with *, as in 2x3*+2x3"
            )
        return self.loopable

    @property
    def iso_param(self) -> LoopPlan:
        """Returns the baseline with as many distinct layers, each run once."""
        return LoopPlan((Block(self.distinct_layers, 1),))

    @property
    def iso_flop(self) -> LoopPlan:
        """Returns the baseline of the same depth in which no layer runs twice."""
        return LoopPlan((Block(self.depth, 1),))

    @property
    def typography(self) -> str:
        """Returns the plan as the paper writes it: (4⊗6), (4⊗1,4,1), and joined with + where blocks differ in size."""
        groups = itertools.groupby(self.blocks, key=lambda block: block.layers)
        return "+".join(f"({layers}⊗{','.join(str(b.loops) for b in blocks)})" for layers, blocks in groups)

    def __str__(self) -> str:
        marked = None if self.loopable == _only_candidate(self.blocks) else self.loopable
        loops = [f"{block.loops}*" if i == marked else str(block.loops) for i, block in enumerate(self.blocks)]
        terms = []
        for layers, group in itertools.groupby(range(len(self.blocks)), key=lambda i: self.blocks[i].layers):
            same_size = [loops[i] for i in group]
            terms.append(f"{layers}x{same_size[0]}" if len(same_size) == 1 else f"{layers}x({','.join(same_size)})")
        return "+".join(terms)

    def __repr__(self) -> str:
        return f"LoopPlan.parse({str(self)!r})"


def _only_candidate(blocks: tuple[Block, ...]) -> int | None:
    """Returns the index of the block that is loopable without a mark: the only one, or the only one that loops."""
    if len(blocks) == 1:
        return 0
    looped = [i for i, block in enumerate(blocks) if block.loops > 1]
    return looped[0] if len(looped) == 1 else None


class _Parser:
    """A recursive-descent parser, one method per rule of the grammar:

    plan = term ("+" term)*;  term = k "x" loops, or the paper's "(" k "⊗" loops ")";
    loops = L | L ("," L)* inside brackets;  L = number, with "*" after it where it marks the loopable block."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.blocks: list[Block] = []
        self.loopable: int | None = None

    def plan(self) -> LoopPlan:
        self.term()
        while self.take("+"):
            self.term()
        if self.peek():
            self.fail("expected '+' and another block, or the end")
        try:
            return LoopPlan(tuple(self.blocks), self.loopable)
        except PlanError as error:
            raise PlanError(f"plan {self.text!r}: {str(error).removeprefix('plan: ')}") from None

    def term(self) -> None:
        bracketed = self.take("(")
        layers = self.number("a number of layers")
        if not (self.take("x") or self.take("X") or self.take("⊗") or self.take("×")):
            self.fail("expected 'x' between the layers and the loops")
        listed = self.take("(")
        self.loops(layers)
        while (bracketed or listed) and self.take(","):
            self.loops(layers)
        for opened in (listed, bracketed):
            if opened and not self.take(")"):
                self.fail("expected ',' or ')'")

    def loops(self, layers: int) -> None:
        self.blocks.append(Block(layers, self.number("a number of loops")))
        before = self.at
        if self.take("*"):
            if self.loopable is not None:
                self.at = before
                self.fail("only one block can be marked loopable with '*'; this is a second")
            self.loopable = len(self.blocks) - 1

    def number(self, what: str) -> int:
        self.peek()
        match = re.compile("[0-9]+").match(self.text, self.at)
        if not match:
            self.fail(f"expected {what}, 1 or more")
        if len(match.group()) > 9:
            self.fail(f"{what} of {len(match.group())} digits; a plan runs at most {MAX_DEPTH} layers")
        if int(match.group()) == 0:
            self.fail(f"expected {what}, 1 or more")
        self.at = match.end()
        return int(match.group())

    def peek(self) -> str:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def take(self, symbol: str) -> bool:
        found = self.peek() == symbol
        self.at += found
        return found

    def fail(self, message: str) -> NoReturn:
        shown = "".join(c if c.isprintable() else " " for c in self.text)
        raise PlanError(f"plan {self.text!r}: {message} (character {self.at + 1})\n  {shown}\n  {' ' * self.at}^")
