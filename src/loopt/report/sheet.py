"""A table of the paper with our numbers: for the terminal, in Markdown and in LaTeX."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loopt.report.drawing import human

DETAILS = ("% gap", "seeds", "parameters", "FLOPs", "steps", "to 99%", "seconds")
LATEX = str.maketrans(
    {
        "%": r"\%",
        "⊗": r"$\otimes$",
        "×": r"$\times$",
        "&": r"\&",
        "_": r"\_",
        "#": r"\#",
        "λ": r"$\lambda$",
        "ℓ": r"$\ell$",
    }
)


@dataclass(frozen=True)
class Cell:
    """One number of ours, over one seed or several, beside the paper's."""

    ours: float | None
    """The mean over seeds."""
    low: float | None
    """The lowest of several seeds."""
    high: float | None
    """The highest of several seeds."""
    paper: float | None
    comparable: bool = True
    """Whether both measure the same thing, so that their difference means something."""
    digits: int = 1
    """How many to show behind the point."""
    every: tuple[float, ...] = ()
    """The number of every seed, also of those that other lines lack: how much seeds differ."""

    @classmethod
    def of(
        cls,
        values: Sequence[float | None],
        paper: float | None,
        comparable: bool = True,
        digits: int = 1,
        every: Sequence[float] = (),
    ) -> Cell:
        """Returns the cell of a number with its value for each seed."""
        known = [value for value in values if value is not None]
        low, high = (min(known), max(known)) if len(known) > 1 else (None, None)
        return cls(fmean(known) if known else None, low, high, paper, comparable, digits, tuple(every))

    def text(self, digits: int | None = None) -> str:
        """Returns our number, its range, and in brackets the paper's and the difference of the two as shown.

        >>> Cell.of([99.76], 99.9).text(), Cell.of([99.9], 99.9, comparable=False).text(), Cell.of([], 99.9).text()
        ('99.8 (99.9, -0.1)', '99.9 (99.9)', '- (99.9)')
        >>> Cell.of([99.0, 100.0], 99.9).text()
        '99.5 [99.0 to 100.0] (99.9, -0.4)'
        """
        digits = self.digits if digits is None else digits
        ours = "-" if self.ours is None else f"{self.ours:.{digits}f}"
        shown = ours if self.low is None else f"{ours} [{self.low:.{digits}f} to {self.high:.{digits}f}]"
        if self.paper is None:
            return shown
        paper = f"{self.paper:.{digits}f}"
        if self.ours is None or not self.comparable:
            return f"{shown} ({paper})"
        difference = round(float(ours) - float(paper), digits) + 0.0  # minus zero becomes zero
        return f"{shown} ({paper}, {difference:+.{digits}f})"


@dataclass(frozen=True)
class Line:
    name: str
    looped: bool
    parameters: int | None
    flops: int | None
    cells: list[Cell]
    gap: Cell | None
    """None for a baseline."""
    seeds: int
    """The number of seeds that the cells are the mean of."""
    steps: list[int]
    """Steps of each run behind the line."""
    solved: list[int | None]
    """The step at which each run first had 99% on validation; None where it never did."""
    seconds: float | None
    """Seconds of all runs together."""
    derived: bool = False
    """Whether it is computed from other lines, such as a gap of each column, and no model of its own."""

    @property
    def accuracies(self) -> list[str]:
        return [cell.text() for cell in self.cells]

    @property
    def details(self) -> list[str]:
        """Returns the texts of the columns DETAILS."""
        return [
            "" if self.gap is None else self.gap.text(digits=0),
            str(self.seeds or ""),
            "" if self.parameters is None else human(self.parameters),
            "" if self.flops is None else human(self.flops),
            _listed(self.steps),
            _listed(self.solved),
            "" if self.seconds is None else f"{self.seconds:.0f}",
        ]

    @property
    def texts(self) -> list[str]:
        return [self.name, *self.accuracies, *self.details]


def _listed(steps: Sequence[int | None]) -> str:
    """Returns numbers of steps as text, repeats counted.

    >>> _listed([7000, None, None, 16000])
    '7000, - ×2, 16000'
    """
    groups = [("-" if step is None else str(step), len(list(same))) for step, same in itertools.groupby(steps)]
    return ", ".join(text if count == 1 else f"{text} ×{count}" for text, count in groups)


@dataclass(frozen=True)
class Sheet:
    """A table, ready to be written in any form."""

    title: str
    columns: list[str]
    lines: list[Line]
    notes: list[str]
    details: tuple[str, ...] = DETAILS
    """Which of DETAILS to show."""
    tops: tuple[float, ...] = ()
    """The end of each column's axis in a figure; 100, of percents, unless given."""
    unit: str = "accuracy, %"
    """What the figure shows; empty where the names of its columns say it."""
    in_words: tuple[str, ...] = ()
    """What the columns are called in a figure; their headings unless given."""

    @property
    def header(self) -> list[str]:
        return ["model", *self.columns, *self.details]

    def details_of(self, line: Line) -> list[str]:
        """Returns the texts of a line's details."""
        return [text for name, text in zip(DETAILS, line.details, strict=True) if name in self.details]

    def texts_of(self, line: Line) -> list[str]:
        """Returns the texts of a line, one for each column of the header."""
        return [line.name, *line.accuracies, *self.details_of(line)]


def terminal(sheet: Sheet) -> RenderableType:
    """Returns two tables, accuracies and details: a terminal of 80 columns has no room for both side by side."""
    accuracies, details = _table(sheet.columns), _table(sheet.details)
    for line in sheet.lines:
        style = "dim" if line.derived else "cyan" if line.looped else ""
        accuracies.add_row(line.name, *map(_stacked, line.accuracies), style=style)
        if not line.derived:
            details.add_row(line.name, *sheet.details_of(line), style=style)
    title, notes = Text(f"{sheet.title}\n", style="bold"), Text("\n".join(sheet.notes), style="dim")
    return Group(title, accuracies, Text(), details, Text(), notes)


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("model", no_wrap=True)
    for column in columns:
        table.add_column(_stacked(column), justify="right", vertical="bottom", overflow="fold")
    return table


def _stacked(text: str) -> str:
    """Breaks a text into lines: our number, its range and the paper's."""
    return text.replace(" [", "\n[").replace(" (", "\n(")


def markdown(sheet: Sheet) -> str:
    rows = [
        "| " + " | ".join(sheet.header) + " |",
        "|---|" + "--:|" * (len(sheet.header) - 1),
        *("| " + " | ".join(sheet.texts_of(line)) + " |" for line in sheet.lines),
    ]
    return f"**{sheet.title}**\n\n" + "\n".join(rows) + "\n\n" + " ".join(sheet.notes) + "\n"


def latex(sheet: Sheet) -> str:

    def row(texts: list[str]) -> str:
        return " & ".join(text.translate(LATEX) for text in texts) + r" \\"

    caption = f"{sheet.title}. {' '.join(sheet.notes)}".translate(LATEX)
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(sheet.header) - 1)}}}",
            r"\toprule",
            row(sheet.header),
            r"\midrule",
            *(row(sheet.texts_of(line)) for line in sheet.lines),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )
