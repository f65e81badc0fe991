"""A table of the paper with our numbers in it: for the terminal, in Markdown, in LaTeX and as a figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loopt.report.curves import require_matplotlib
from loopt.report.drawing import human


@dataclass(frozen=True)
class Cell:
    ours: float | None
    paper: float | None

    def text(self, digits: int = 1) -> str:
        """``99.8 (99.9, -0.1)``: ours, and in brackets the paper's and the difference."""
        if self.ours is None and self.paper is None:
            return ""
        ours = "-" if self.ours is None else f"{self.ours:.{digits}f}"
        if self.paper is None:
            return ours
        if self.ours is None:
            return f"- ({self.paper:.{digits}f})"
        return f"{ours} ({self.paper:.{digits}f}, {self.ours - self.paper:+.{digits}f})"


@dataclass(frozen=True)
class Line:
    name: str
    looped: bool
    parameters: int | None
    flops: int | None
    cells: list[Cell]
    gap: Cell
    steps: int | None
    seconds: float | None

    def texts(self) -> list[str]:
        return [
            self.name,
            "" if self.parameters is None else human(self.parameters),
            "" if self.flops is None else human(self.flops),
            *(cell.text() for cell in self.cells),
            self.gap.text(digits=0),
            "" if self.steps is None else str(self.steps),
            "" if self.seconds is None else f"{self.seconds:.0f}",
        ]


@dataclass(frozen=True)
class Sheet:
    title: str
    columns: list[str]
    lines: list[Line]
    notes: list[str]

    @property
    def header(self) -> list[str]:
        return ["model", "parameters", "FLOPs", *self.columns, "% gap", "steps", "seconds"]


def terminal(sheet: Sheet) -> RenderableType:
    table = Table(title=sheet.title, title_justify="left", title_style="bold")
    for column in sheet.header:
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=column == "model")
    for line in sheet.lines:
        stacked = (text.replace(" (", "\n(") for text in line.texts()[1:])  # ours above the paper's: narrower
        table.add_row(line.name, *stacked, style="cyan" if line.looped else "")
    return Group(table, Text("\n".join(sheet.notes), style="dim"))


def markdown(sheet: Sheet) -> str:
    rows = [
        "| " + " | ".join(sheet.header) + " |",
        "|---|" + "--:|" * (len(sheet.header) - 1),
        *("| " + " | ".join(line.texts()) + " |" for line in sheet.lines),
    ]
    return f"**{sheet.title}**\n\n" + "\n".join(rows) + "\n\n" + " ".join(sheet.notes) + "\n"


def latex(sheet: Sheet) -> str:
    def escape(text: str) -> str:
        for plain, command in (("%", r"\%"), ("⊗", r"$\otimes$"), ("&", r"\&"), ("_", r"\_")):
            text = text.replace(plain, command)
        return text

    rows = [" & ".join(escape(text) for text in line.texts()) + r" \\" for line in sheet.lines]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape(sheet.title)}. {escape(' '.join(sheet.notes))}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(sheet.header) - 1)}}}",
            r"\toprule",
            " & ".join(escape(name) for name in sheet.header) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def draw(sheet: Sheet, path: Path) -> None:
    """One panel per column: our accuracy as a bar, the paper's as a tick across it."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.2 + 2.6 * len(sheet.columns), 0.9 + 0.34 * len(sheet.lines)), layout="constrained")
    panels = figure.subplots(1, len(sheet.columns), sharey=True, squeeze=False)[0]
    places = range(len(sheet.lines))
    for index, (axes, column) in enumerate(zip(panels, sheet.columns, strict=True)):
        ours = [line.cells[index].ours or 0.0 for line in sheet.lines]
        axes.barh(places, ours, color=["#1769aa" if line.looped else "#b8bec5" for line in sheet.lines], height=0.62)
        paper = [(place, line.cells[index].paper) for place, line in zip(places, sheet.lines, strict=True)]
        known = [(place, number) for place, number in paper if number is not None]
        axes.plot([n for _, n in known], [p for p, _ in known], "|", color="#c77700", markersize=13, markeredgewidth=2)
        axes.set(title=column, xlim=(0, 103))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(places, [line.name for line in sheet.lines])
    panels[0].invert_yaxis()
    panels[0].set_xlabel("accuracy, %  (bar: ours, tick: the paper's)")
    figure.savefig(path, dpi=160)
