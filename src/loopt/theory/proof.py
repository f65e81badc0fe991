"""What the check of a theorem reports: sizes claimed and actual, inputs tried, whether all are right; what to show."""

from __future__ import annotations

from dataclasses import dataclass, field

from loopt.model import LoopedTransformer


@dataclass(frozen=True)
class Size:
    """One size of a construction: what the theorem claims for it, what it is, and, where they differ, why."""

    name: str
    claimed: int | None
    """None where the paper names an order only, such as O(log n); ``note`` then says which."""
    actual: int
    note: str = ""

    @property
    def as_claimed(self) -> bool:
        return self.claimed is None or self.actual <= self.claimed


@dataclass(frozen=True)
class Check:
    """The construction compared with its algorithm on some inputs."""

    what: str
    inputs: int
    wrong: int
    """How many came out wrong."""
    seconds: float
    worst: float | None = None
    """The largest difference, where what is compared are numbers."""

    @property
    def exact(self) -> bool:
        return self.wrong == 0 and self.inputs > 0


@dataclass(frozen=True)
class Trace:
    """What every position holds after each loop, in words."""

    title: str
    columns: tuple[str, ...]
    """A heading for each position, such as its token."""
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    """After which loop, and a text for each position."""


@dataclass(frozen=True)
class Proof:
    """A theorem, built and run."""

    name: str
    """As on the command line, such as group-composition."""
    title: str
    sizes: tuple[Size, ...]
    checks: tuple[Check, ...]
    models: dict[str, LoopedTransformer]
    """The built models by a short name, under which ``--save`` keeps them."""
    notes: tuple[str, ...] = ()
    """One line each: what the reader should know, such as a repair of the paper's text."""
    traces: tuple[Trace, ...] = field(default=())

    @property
    def exact(self) -> bool:
        return all(check.exact for check in self.checks)
