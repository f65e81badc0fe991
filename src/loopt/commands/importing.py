"""The option --import of every command: scripts and modules that register tasks of the user's own."""

from __future__ import annotations

from loopt.errors import InputError
from loopt.tasks import import_tasks

OPTION = "--import"


def import_named(arguments: list[str]) -> list[str]:
    """Imports what each --import names, and returns the arguments without them."""
    rest, words = [], iter(arguments)
    for word in words:
        if word != OPTION:
            rest.append(word)
            continue
        what = next(words, "")
        if not what:
            raise InputError(f"{OPTION}: which? Give the path of a Python script, or the name of an installed module")
        import_tasks(what)
    return rest
