"""Command-line parsing: options from dataclasses, and the choice of a subcommand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
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
from loopt.limits import INT64
from loopt.plan import LoopPlan
from loopt.report.screen import printable

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


@registry.primitive_rule
def _integer_of_64_bits(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """Reads integers of up to 64 bits: no option is for larger ones, and tensors hold none."""
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: _integer(words[0]),
        is_instance=lambda value: type(value) is int,
        str_from_instance=lambda value: [str(value)],
    )


def _integer(written: str) -> int:
    if len(written) > 20 or int(written) not in INT64:
        raise ValueError(f"{printable(written[:20])}: allowed are integers from -2^63 to 2^63 - 1")
    return int(written)


@registry.primitive_rule
def _path_in_utf8(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Path] | None:
    if info.type is not Path:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda words: path_named(words[0]),
        is_instance=lambda value: isinstance(value, Path),
        str_from_instance=lambda value: [printable(value)],
    )


@registry.primitive_rule
def _exit_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Has exit rules given as text, which is read when it is known with which model."""
    if getattr(info.type, "__name__", "") != "ExitRule":
        return None
    return PrimitiveConstructorSpec(1, "RULE", lambda words: words[0], lambda value: False, lambda value: [repr(value)])


def path_named(name: str) -> Path:
    """Returns the path of that name, which has to be UTF-8: weights can be kept under no other."""
    if any("\ud800" <= c <= "\udfff" for c in name):
        raise InputError(f"{printable(name)}: allowed is a name in UTF-8")
    return Path(name)


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
    if name.isdecimal() and len(name) < 19:
        return int(name)
    match name:
        case "best" | "last":
            return name
    raise InputError(f"checkpoint={name[:40]}: allowed is best | last | a step, such as 500")


def choose(arguments: list[str], usage: str, what: str, allowed: Sequence[str]) -> tuple[str, list[str]] | None:
    """Returns the subcommand, one of ``allowed``, and its arguments; prints the usage and returns None for --help."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage, end="")
        return None
    if arguments[0] not in allowed:
        raise InputError(f"{what} {arguments[0]!r} is not known; allowed are {', '.join(allowed)}")
    return arguments[0], arguments[1:]


def first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0]
