"""The command line, called as a person would call it, in this process."""

from __future__ import annotations

from loopt.cli import main


def is_refusal(stderr: str) -> bool:
    """Tells whether an error is shown as it should be: in one line; of a plan, with two that point at a character."""
    line, _, pointing = stderr.partition("\n")
    return line.startswith("loopt: ") and (
        not pointing or (line.startswith("loopt: plan ") and pointing.endswith("^\n"))
    )


def run(*arguments: str) -> int:
    """The exit code."""
    try:
        return main(arguments)
    except SystemExit as exit:  # from the parser of options
        return int(exit.code or 0)
