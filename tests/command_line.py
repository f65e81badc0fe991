"""The command line, called as a person would call it, in this process."""

from __future__ import annotations

from loopt.cli import main


def is_refusal(stderr: str) -> bool:
    """Tells whether an error is shown as it should be: in one line, or in the box of the parser of options."""
    boxed = stderr.startswith(("╭", " "))  # the latter where the terminal has no characters for boxes
    return boxed or (stderr.startswith("loopt: ") and stderr.count("\n") == 1)


def run(*arguments: str) -> int:
    """The exit code."""
    try:
        return main(arguments)
    except SystemExit as exit:  # from the parser of options
        return int(exit.code or 0)
