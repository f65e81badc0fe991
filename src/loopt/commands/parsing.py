"""Command-line parsing: options from dataclasses, and the choice of a subcommand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructTypeInfo,
)

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


_flattening: list[type] = []


@registry.struct_rule
def _source_without_prefix(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Drops the prefix of a source's settings: --data and --p rather than --source.data and --source.p."""
    if getattr(info.type, "__name__", "") != "TrainConfig" or _flattening:
        return None
    _flattening.append(info.type)  # so that this rule passes, and tyro's own makes the fields
    try:
        spec = ConstructorRegistry.get_struct_spec(info)
    finally:
        _flattening.clear()
    if not isinstance(spec, StructConstructorSpec):
        return None
    fields = [
        dataclasses.replace(field, type=Annotated[type(field.default), tyro.conf.arg(name="")])  # type: ignore[arg-type]
        if field.name == "source"
        else field
        for field in spec.fields
    ]
    return dataclasses.replace(spec, fields=tuple(fields))


def parse_options(kind: type[Options], arguments: list[str], prog: str, **options: Any) -> Options:
    """Returns a dataclass filled from the command line; its docstrings are the --help."""
    config = (tyro.conf.AvoidSubcommands,)
    return tyro.cli(kind, args=arguments, prog=prog, registry=registry, config=config, **options)


def checkpoint_named(name: str) -> Literal["best", "last"] | int:
    """Returns the checkpoint that a name means: best, last, or a step."""
    if name.isdecimal():
        return int(name)
    match name:
        case "best" | "last":
            return name
    raise InputError(f"checkpoint={name}: allowed is best | last | a step, such as 500")


def choose(arguments: list[str], usage: str, what: str, allowed: Sequence[str]) -> tuple[str, list[str]] | None:
    """Returns the subcommand, one of ``allowed``, and its arguments; prints the usage and returns None for --help."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage, end="")
        return None
    if arguments[0] not in allowed:
        raise InputError(f"{what} {arguments[0]!r} is not known; allowed are {', '.join(allowed)}")
    return arguments[0], arguments[1:]


def first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]
