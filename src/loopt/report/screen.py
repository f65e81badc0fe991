"""Text from the user on the screen: names and messages as they are, never as markup or as commands to a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def screen(stderr: bool = False) -> Console:
    """Returns the console that tables are printed on, which takes [bold] and :smile: for what they are, text."""
    from rich.console import Console  # takes a tenth of a second to import, which errors do without

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def printable(text: object) -> str:
    """Returns text from the user as one line, with control characters and bytes that are no text written as escapes.

    >>> printable("runs/a\\nb\\x1b[31m")
    'runs/a\\\\nb\\\\x1b[31m'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
