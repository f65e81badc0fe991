"""Command-line parsing: options from dataclasses, and the choice of a subcommand."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import re
from collections.abc import Callable, Sequence
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

from loopt.commands.option_list import OptionList
from loopt.errors import InputError, did_you_mean, not_known
from loopt.limits import INT64
from loopt.plan import LoopPlan
from loopt.report.screen import printable

Options = TypeVar("Options")

Value = TypeVar("Value")

registry = ConstructorRegistry()


class _RefusedError(Exception):
    """Carries an error of ours past the parser, which would draw a box around a ValueError."""

    def __init__(self, refusal: InputError) -> None:
        self.refusal = refusal


def _reading(read: Callable[[str], Value]) -> Callable[[list[str]], Value]:
    """Returns the function by which the parser reads the one word of an option."""

    def read_word(words: list[str]) -> Value:
        try:
            return read(words[0])
        except InputError as error:
            raise _RefusedError(error) from None

    return read_word


@registry.primitive_rule
def _plan_as_text(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[LoopPlan] | None:
    if info.type is not LoopPlan:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="PLAN",
        instance_from_str=_reading(LoopPlan.parse),
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
    if len(written) <= 20 and not re.fullmatch(r"[+-]?\d+", written):
        raise ValueError(f"{printable(repr(written))}: allowed is an integer")
    if len(written) > 20 or int(written) not in INT64:
        raise ValueError(f"{printable(written[:20])}: allowed are integers from -2^63 to 2^63 - 1")
    return int(written)


@registry.primitive_rule
def _number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[float] | None:
    if info.type is not float:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="FLOAT",
        instance_from_str=lambda words: _float(words[0]),
        is_instance=lambda value: type(value) in (int, float),
        str_from_instance=lambda value: [str(value)],
    )


def _float(written: str) -> float:
    try:
        return float(written)
    except ValueError:
        raise ValueError(f"{printable(repr(written[:40]))}: allowed is a number") from None


@registry.primitive_rule
def _path_in_utf8(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Path] | None:
    if info.type is not Path:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=_reading(path_named),
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


def parse_options(
    kind: type[Options],
    arguments: list[str],
    prog: str,
    first: Sequence[str] = (),
    without: Sequence[str] = (),
    **options: Any,
) -> Options:
    """Returns a dataclass filled from the command line. Its docstrings are the help: --help shows the options
    ``first``, or all where none are named, and --help-all every one by group. Those ``without`` a use are refused."""
    settings = {"prog": prog, "registry": registry, "config": (tyro.conf.AvoidSubcommands,), **options}
    if {"-h", "--help", "--help-all"}.intersection(arguments):
        listed = OptionList.of(kind, settings, without)
        print(listed.whole_screen() if "--help-all" in arguments else listed.first_screen(first), end="")
        raise SystemExit(0)
    for argument in arguments:
        name = argument.partition("=")[0].replace("_", "-")
        if name.removeprefix("--") in without and name.startswith("--"):
            raise InputError(f"unrecognized option {name}: `{prog}` has no use for it")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, args=arguments, **settings)
    except _RefusedError as error:
        raise error.refusal from None
    except SystemExit as end:
        if not end.code:
            raise
    raise InputError(_in_one_line(said.getvalue(), OptionList.of(kind, settings, without)))


def _in_one_line(box: str, listed: OptionList) -> str:
    """Returns as one line what the parser says of an error in a box: below its title, and above a rule with advice.
    Where there are no characters for boxes, a rule is below the title too."""
    lines = [line.strip("│ ") for line in box.splitlines()[1:]]
    below_title = itertools.dropwhile(lambda line: not line.strip("-"), lines)
    message = " ".join(" ".join(itertools.takewhile(lambda line: line.strip("─-╰╯"), below_title)).split())
    unknown = re.match(r"Unrecognized options: (\S+?)(,|$)", message)
    if unknown:
        meant = did_you_mean(unknown[1], listed.names)
        return " ".join(f"unrecognized option {unknown[1]}; {meant} `{listed.prog} --help-all` lists them all".split())
    choice = re.match(r"invalid choice (.+) for argument '(.+?)'\. Expected one of \((.+)\)", message)
    if choice:
        value, option, allowed = choice.groups()
        return f"{option}: {value}: allowed is " + allowed.replace("'", "").replace(", ", " | ")
    missing = re.match(r"Missing value for argument '(.+?)'", message)
    if missing:
        return f"{missing[1]}: which? Give a value after it"
    return re.sub(r"^Error parsing (?!--)\S+: ", "", message).removeprefix("Error parsing ")


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
    if not arguments or arguments[0] in ("-h", "--help", "--help-all"):
        print(usage, end="")
        return None
    if arguments[0] not in allowed:
        raise not_known(what, arguments[0], allowed)
    return arguments[0], arguments[1:]


def first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0]
