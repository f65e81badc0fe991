"""What the proof of a theorem reports: claimed and actual sizes, the checks and their outcome, traces to show."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from loopt.model import LoopedTransformer
from loopt.tasks import Task


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
    """A comparison of the construction with what the theorem says of it."""

    what: str
    scope: str
    """For which inputs this settles it, such as "every word of 64 elements" or "400 sampled sequences"."""
    cases: int
    """How many cases were compared."""
    unit: str
    """What a case is, such as "pairs of elements"."""
    wrong: int
    """How many cases came out wrong."""
    seconds: float
    worst: float | None = None
    """The largest difference, where numbers are compared."""
    where: str = ""
    """The first case that came out wrong."""

    @property
    def exact(self) -> bool:
        return self.wrong == 0 and self.cases > 0


@dataclass
class Tally:
    """Counts the cases of one check while they are compared, and remembers the first that is wrong.

    >>> tally = Tally()
    >>> tally.equal("codes", torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4]))
    >>> tally.cases, tally.wrong, tally.where
    (3, 1, 'codes: case 2 is 3, should be 4')
    """

    cases: int = 0
    wrong: int = 0
    where: str = ""
    started: float = field(default_factory=time.perf_counter)

    def holds(self, what: str, right: bool | Tensor) -> None:
        """Counts the elements of ``right``, of which each should be true."""
        right = torch.as_tensor(right)
        self.cases += right.numel()
        self._note(what, ~right.flatten())

    def equal(self, what: str, found: Tensor, wanted: Tensor) -> None:
        """Counts the rows of ``found`` and of ``wanted`` (or their elements, without further dimensions)."""
        if found.shape != wanted.shape:
            self.cases += 1
            self._note(f"{what}: shape {tuple(found.shape)}, should be {tuple(wanted.shape)}", torch.tensor([True]))
            return
        apart = found != wanted
        rows = apart.flatten(1).any(1) if apart.dim() > 1 else apart.reshape(-1)
        self.cases += len(rows)
        if not self.where and bool(rows.any()):
            row = int(rows.nonzero()[0])
            ours, theirs, differ = (
                found.reshape(len(rows), -1),
                wanted.reshape(len(rows), -1),
                apart.reshape(len(rows), -1),
            )
            at = int(differ[row].nonzero()[0])
            what = f"{what}: case {row} is {ours[row, at].item():.6g}, should be {theirs[row, at].item():.6g}"
            self.where = what
        self.wrong += int(rows.sum())

    def add(self, other: Tally) -> None:
        """Counts the cases of another tally too."""
        self.cases += other.cases
        self.wrong += other.wrong
        self.where = self.where or other.where

    def _note(self, what: str, wrong: Tensor) -> None:
        self.wrong += int(wrong.sum())
        if not self.where and bool(wrong.any()):
            at = f": case {int(wrong.nonzero()[0])}" if len(wrong) > 1 else ""
            self.where = f"{what}{at}"

    def check(self, what: str, scope: str, unit: str, worst: float | None = None) -> Check:
        seconds = time.perf_counter() - self.started
        return Check(what, scope, self.cases, unit, self.wrong, seconds, worst, self.where)


@dataclass(frozen=True)
class Trace:
    """A table of what every position holds after each loop."""

    title: str
    columns: tuple[str, ...]
    """A heading for each position, such as its token."""
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    """For each loop its name and a text per position."""


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """Where the heads of a built model look, layer by layer as it runs, on one input."""

    title: str
    tokens: tuple[str, ...]
    """A heading for each position."""
    rows: tuple[tuple[str, tuple[tuple[str, Tensor], ...]], ...]
    """For each layer that runs its name, and for each of its heads the name and the weights [n, n]."""


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
    maps: tuple[AttentionMaps, ...] = ()
    tasks: dict[str, Task] = field(default_factory=dict)
    """For models that solve a task in float32 too, which: ``--save`` writes these as runs."""

    @property
    def exact(self) -> bool:
        return all(check.exact for check in self.checks)
