"""The code blocks of a page of the documents, in their order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).parents[1]

_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>.*?) -->\n+)?"
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of code, as a reader would copy it."""

    language: str
    code: str
    title: str | None = None
    """The file that a reader is to save it as."""
    reason: str | None = None
    """Why it cannot run as it stands: the text of the comment ``<!-- not run: … -->`` in front of it."""

    @property
    def commands(self) -> list[str]:
        """Returns the commands of a block of shell, one to a line, with lines that end in a backslash joined."""
        return [line for line in self.code.replace("\\\n", " ").splitlines() if line.strip()]


def blocks_of(page: Path, section: str | None = None) -> list[Block]:
    """Returns the blocks of shell and Python of a page, or of the section below one of its headings."""
    text = page.read_text(encoding="utf-8")
    if section is not None:
        _, heading, text = text.partition(f"\n## {section}\n")
        if not heading:
            raise SystemExit(f"{page}: no section {section!r}")
        text = text.partition("\n## ")[0]
    found = [Block(m["language"], m["code"], m["title"], m["reason"]) for m in _BLOCK.finditer(text)]
    return [block for block in found if block.language in ("sh", "python")]
