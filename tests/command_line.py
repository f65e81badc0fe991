"""The command line, called as a person would call it, in this process."""

from __future__ import annotations

from loopt.cli import main


def run(*arguments: str) -> int:
    """The exit code."""
    try:
        return main(arguments)
    except SystemExit as exit:  # from the parser of options
        return int(exit.code or 0)
