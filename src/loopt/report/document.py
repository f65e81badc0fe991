"""A document of text, tables, figures and code, written as one self-contained HTML file or as Markdown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from loopt.report.page_style import STYLE, colored_by_page
from loopt.report.sheet import Sheet

MORE_STYLE = """
body { max-width: 68rem }
.figures td, .figures th { font-size: .88rem; padding: .3rem .6rem }
.figures th:first-child { white-space: nowrap }
.figures .text { text-align: left }
"""


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Code:
    """Commands, one a line."""

    text: str


@dataclass(frozen=True)
class Grid:
    """A table; its first column names the rows."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    of_text: bool = False
    """Whether its cells are words, not numbers."""
    marked: frozenset[int] = frozenset()
    """The rows to stand out, by number."""


@dataclass(frozen=True)
class Picture:
    """A figure that was drawn as an SVG file."""

    svg: Path
    caption: str


Block = Paragraph | Code | Grid | Picture


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    title: str
    blocks: Sequence[Block]
    """What stands before the first section."""
    sections: Sequence[Section]


def grid_of(sheet: Sheet) -> Grid:
    """Returns a table of the paper as part of a document."""
    looped = frozenset(i for i, line in enumerate(sheet.lines) if line.looped)
    return Grid(sheet.header, [sheet.texts_of(line) for line in sheet.lines], " ".join(sheet.notes), marked=looped)


def to_html(document: Document) -> str:
    """Returns the document as a page that needs nothing else; all text in it is escaped."""
    parts = [_html(block) for block in document.blocks]
    for section in document.sections:
        parts += [f"<h2>{escape(section.title)}</h2>", *map(_html, section.blocks)]
    title = escape(document.title)
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{title}</title><style>{STYLE}{MORE_STYLE}</style>\n<h1>{title}</h1>\n"
        + "\n".join(parts)
        + "\n</html>\n"
    )


def to_markdown(document: Document, place: Path) -> str:
    """Returns the document as Markdown for the file ``place``, from which it links to its figures."""
    parts = [f"# {_plain(document.title)}", *(_markdown(block, place) for block in document.blocks)]
    for section in document.sections:
        parts += [f"## {_plain(section.title)}", *(_markdown(block, place) for block in section.blocks)]
    return "\n\n".join(parts) + "\n"


def _html(block: Block) -> str:
    match block:
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Code(text):
            return "".join(f"<code>{escape(line)}</code>" for line in text.splitlines())
        case Picture(svg, caption):
            drawing = colored_by_page(svg.read_text(encoding="utf-8"))
            return f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"
        case Grid(header, rows, note, of_text, marked):
            kind = ' class="text"' if of_text else ""
            head = "".join(f"<th{kind}>{escape(cell)}</th>" for cell in header)
            body = "".join(
                f"<tr{' class=looped' if i in marked else ''}><th>{escape(row[0])}</th>"
                + "".join(f"<td{kind}>{escape(cell)}</td>" for cell in row[1:])
                + "</tr>"
                for i, row in enumerate(rows)
            )
            below = f'<p class="note">{escape(note)}</p>' if note else ""
            return f'<div class="wide"><table class="figures"><tr>{head}</tr>{body}</table></div>{below}'


def _markdown(block: Block, place: Path) -> str:
    match block:
        case Paragraph(text):
            return _plain(text)
        case Code(text):
            return f"```sh\n{text.strip()}\n```"
        case Picture(svg, caption):
            return f"![{_plain(caption)}]({Path(os.path.relpath(svg, place.parent)).as_posix()})"
        case Grid(header, rows, note, of_text, _):
            line = "| " + " | ".join("---" if of_text or i == 0 else "--:" for i in range(len(header))) + " |"
            written = ["| " + " | ".join(_plain(cell) for cell in cells) + " |" for cells in (header, *rows)]
            return "\n".join([written[0], line, *written[1:]]) + (f"\n\n{_plain(note)}" if note else "")


def _plain(text: str) -> str:
    """Returns text in one line in which Markdown finds no HTML and no cell of a table."""
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
