"""What the proof of a theorem reports: claimed and actual sizes, the checks and their outcome, traces to show."""

from __future__ import annotations

from dataclasses import dataclass

from loopt.model import LoopedTransformer


@dataclass(frozen=True)
class Size:
    """The claimed and the actual value of one size of a construction, and why they differ."""

    name: str
    claimed: int | None
    """None where the paper gives only an order, such as O(log n), which ``note`` repeats."""
    actual: int
    note: str = ""

    @property
    def as_claimed(self) -> bool:
        return self.claimed is None or self.actual <= self.claimed


@dataclass(frozen=True)
class Check:
    """A comparison of the construction with its algorithm on some inputs."""

    what: str
    inputs: int
    wrong: int
    """How many inputs came out wrong."""
    seconds: float
    worst: float | None = None
    """The largest difference, where numbers are compared."""

    @property
    def exact(self) -> bool:
        return self.wrong == 0 and self.inputs > 0


@dataclass(frozen=True)
class Trace:
    """A table of what every position holds after each loop."""

    title: str
    columns: tuple[str, ...]
    """A heading for each position, such as its token."""
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    """For each loop its name and a text per position."""


@dataclass(frozen=True)
class Proof:
    """A theorem's construction, built, run and checked."""

    title: str
    sizes: tuple[Size, ...]
    checks: tuple[Check, ...]
    models: dict[str, LoopedTransformer]
    """The built models by the names under which ``--save`` keeps them."""
    notes: tuple[str, ...] = ()
    """Lines for the reader, such as a repair of the paper's text."""
    traces: tuple[Trace, ...] = ()

    @property
    def exact(self) -> bool:
        return all(check.exact for check in self.checks)
