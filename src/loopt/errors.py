"""The errors that are meant for the user, and the one way to check a value.

An exported model carries this file, so it imports nothing but the standard library.
"""

from __future__ import annotations

import dataclasses
import difflib
import numbers
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """What the user gave cannot be used. The message stands alone: the command line prints it and nothing else."""


class PlanError(InputError):
    """A plan cannot be read or run."""


class ConfigError(InputError):
    """A config describes a model or a run that cannot be built."""


class MissingPackageError(InputError):
    """A package that not everyone needs is not installed; the message says how to get it."""


class RunError(InputError):
    """A run's directory cannot be written, or does not hold what it should."""


def require(holds: bool, field: str, value: object, allowed: str, error: type[InputError] = ConfigError) -> None:
    """Raises ``error`` unless ``holds``, with a message that names the field, its value and what is allowed.

    >>> require(3 >= 1, "steps", 3, "1 or more")
    >>> require(0 >= 1, "steps", 0, "1 or more")
    Traceback (most recent call last):
    loopt.errors.ConfigError: steps=0: allowed is 1 or more
    """
    if not holds:
        raise error(f"{field}={value}: allowed is {allowed}")


def require_numbers(config: Any, prefix: str = "") -> None:
    """Raises a ConfigError where a field that a dataclass declares as a number holds something else, such as text.

    >>> from dataclasses import make_dataclass
    >>> require_numbers(make_dataclass("Sizes", [("steps", "int")])("5"))
    Traceback (most recent call last):
    loopt.errors.ConfigError: steps='5': allowed is an integer
    """
    kinds = {"int": (numbers.Integral, "an integer"), "float": (numbers.Real, "a number")}
    for field in dataclasses.fields(config):
        kind, _, rest = str(field.type).partition(" | ")
        value = getattr(config, field.name)
        if kind in kinds and not (value is None and rest == "None"):
            holds = isinstance(value, kinds[kind][0]) and not isinstance(value, bool)
            require(holds, prefix + field.name, repr(value), kinds[kind][1])


def not_known(what: str, given: str, allowed: Iterable[str]) -> InputError:
    """Returns the error about a name that is none of those allowed, with the one that was probably meant.

    >>> not_known("command", "trian", ["train", "eval"])
    InputError("command 'trian' is not known; did you mean train? Allowed are train, eval")
    """
    names = list(allowed)
    meant = did_you_mean(given, names)
    which = f"{meant} Allowed" if meant else "allowed"
    return InputError(f"{what} {given[:80]!r} is not known; {which} are {', '.join(names)}")


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """Returns a question that names what was probably meant, or nothing."""
    close = difflib.get_close_matches(given[:80], list(allowed), n=1)
    return f"did you mean {close[0]}?" if close else ""
