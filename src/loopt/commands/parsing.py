"""What the commands share: options from dataclasses, and a first word that chooses."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from loopt.errors import InputError
from loopt.plan import LoopPlan

Options = TypeVar("Options")

registry = ConstructorRegistry()


@registry.primitive_rule
def _plan_as_text(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[LoopPlan] | None:
    if info.type is not LoopPlan:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="PLAN",
        instance_from_str=lambda words: LoopPlan.parse(words[0]),
        is_instance=lambda value: isinstance(value, LoopPlan),
        str_from_instance=lambda value: [str(value)],
    )


def parse_options(kind: type[Options], arguments: list[str], prog: str, **options: Any) -> Options:
    """Fill a dataclass from the command line; its docstrings are the help."""
    config = (tyro.conf.AvoidSubcommands,)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The field `task` is annotated", UserWarning)  # None with text: see its field
        return tyro.cli(kind, args=arguments, prog=prog, registry=registry, config=config, **options)


def choose(arguments: list[str], usage: str, what: str, allowed: Sequence[str]) -> tuple[str, list[str]] | None:
    """The first word, which must be one of ``allowed``, and the rest; None after printing the usage."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage, end="")
        return None
    if arguments[0] not in allowed:
        raise InputError(f"{what} {arguments[0]!r} is not known; allowed are {', '.join(allowed)}")
    return arguments[0], arguments[1:]


def first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]
