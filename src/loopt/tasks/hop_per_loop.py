"""p-hop where every loop is to make one hop: how many loops the model runs says how many hops are asked for.

A step of training that runs l loops trains on l-hop. So there is no token for p, and a model can be asked for more
hops than it ever made in training, by running it for longer.

>>> task = HopPerLoop(p=(4,), n=32, test_p=(2, 4, 6))
>>> task.for_loops(3).p, list(task.tests), task.tests["p=6"].loops
((3,), ['p=2', 'p=4', 'p=6'], 6)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from loopt.errors import InputError
from loopt.tasks.base import Supervision, Task, different_integers
from loopt.tasks.phop import PHop


@dataclass(frozen=True)
class HopPerLoop(PHop):
    name: ClassVar[str] = "hop_per_loop"

    p: tuple[int, ...] = (4,)
    """How many hops: as many as the plan has loops. Steps with fewer or more loops make as many hops as those."""
    n: int = 64
    """How many letters an example has."""
    supervision: Supervision = "every"
    """last: the last letter alone has a label. every: each letter has one, where its own chain leads."""
    test_p: tuple[int, ...] = ()
    """The numbers of hops to test, each with as many loops, also beyond those of training; p unless given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "test_p", different_integers(self.name, "test_p", self.test_p, 1))
        if len(self.p) != 1:
            raise InputError(f"task hop_per_loop: p={self.p}; allowed is one integer, the number of the plan's loops")
        if self.test_p and max(self.test_p) > self.p[0]:
            replace(self, p=(max(self.test_p),), test_p=())  # says what n they need

    @property
    def loops(self) -> int:
        return self.p[0]

    def for_loops(self, loops: int) -> HopPerLoop:
        return replace(self, p=(loops,), test_p=())

    @property
    def tests(self) -> dict[str, Task]:
        return {f"p={p}": self.for_loops(p) for p in self.test_p or self.p}
