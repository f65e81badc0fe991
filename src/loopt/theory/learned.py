"""A comparison, loop by loop, of a model trained on p-hop with the one that Corollary 5.3 builds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loopt.analysis import answers_by_loop
from loopt.errors import InputError
from loopt.model import LoopedTransformer
from loopt.tasks.phop import PHop
from loopt.theory.phop import build_looped, hops_held


@dataclass(frozen=True)
class AfterLoop:
    """The accuracy of the answer read out after some loops, for 1 hop, 2 hops, …"""

    loops: int
    accuracies: tuple[float, ...]
    """One for each of the comparison's hop counts."""


@dataclass(frozen=True)
class HopComparison:
    """A trained and a built model on the last letter of the same examples."""

    hops: tuple[int, ...]
    """1, 2, 4, … p, and the other hop counts that the built model passes through."""
    examples: int
    learned: tuple[AfterLoop, ...]
    built: tuple[AfterLoop, ...]
    """The looped model, which has no answer after its first loop and says ⊥."""


def compare(model: LoopedTransformer, task: PHop, examples: int = 100, seed: int = 0) -> HopComparison:
    """Returns how often a trained model and the built one, read out after each loop, answer right for p hops or fewer;
    it shows whether the trained model doubles its pointers too."""
    if task.mixed:
        raise InputError(f"task phop: p={task.p}; a comparison with the built model is for runs with one p")
    (p,) = task.p
    hops = tuple(sorted({2**k for k in range(p.bit_length())} | set(hops_held(p))))
    sequences = task.sample(range(examples), seed, "test").tokens.tolist()
    wanted = [[replace(task, p=(count,)).solve(tokens)[-1] for count in hops] for tokens in sequences]
    built = build_looped(p, task.n, task.alphabet).model()
    start = task.alphabet + 1
    return HopComparison(
        hops=hops,
        examples=examples,
        learned=_after_loops(model, sequences, wanted),
        built=_after_loops(built, [[start, *tokens] for tokens in sequences], wanted),
    )


def _after_loops(
    model: LoopedTransformer, sequences: Sequence[list[int]], wanted: Sequence[list[int]]
) -> tuple[AfterLoop, ...]:
    by_example = [answers_by_loop(model, tokens) for tokens in sequences]
    table = []
    for of_loop in zip(*by_example, strict=True):
        hits = [[answer.choices[-1][0] == w for w in row] for answer, row in zip(of_loop, wanted, strict=True)]
        accuracies = tuple(sum(column) / len(hits) for column in zip(*hits, strict=True))
        table.append(AfterLoop(of_loop[0].loops, accuracies))
    return tuple(table)
