"""A config as JSON and back. Reading checks every name and type, so that a typo is an error and not a default."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shlex
import types
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from loopt import tasks
from loopt.errors import ConfigError, PlanError
from loopt.limits import INT64
from loopt.plan import LoopPlan
from loopt.runs.config import TrainConfig
from loopt.runs.optimizers import OPTIMIZERS, OptimizerConfig
from loopt.source import PLACE, Source
from loopt.tasks import Task
from loopt.text.source import Text

Config = TypeVar("Config")

CHOICES = (Source, Task, OptimizerConfig)
"""Classes with several kinds, of which a config has one; JSON tells which by its name."""
DEEPEST = 10
"""How many fields lead to a choice at most: a task may have another in it."""
IMPORT = "import"
"""Stands beside the name of a task that is not loopt's own: where it was imported from. No part of the run's identity,
and never imported because a file says so: whoever reads the run imports it, or is told what to import."""


def _kinds_of(choice: type) -> dict[str, Any]:
    if choice is OptimizerConfig:
        return dict(OPTIMIZERS)
    every_task = {**tasks.known(), **tasks.OF_BUILT_MODELS}
    return every_task if choice is Task else {**every_task, Text.name: Text}


def to_json(config: TrainConfig) -> dict[str, Any]:
    encoded: dict[str, Any] = _encode(config)
    return encoded


def from_json(data: Any) -> TrainConfig:
    """Returns the config that ``to_json`` gave, or raises a ConfigError that names the field."""
    config: TrainConfig = decode(TrainConfig, data, "config")
    return config


def fingerprint(config: TrainConfig) -> str:
    """Returns a short hash of everything that decides the run's result, as it will be read back, where lr=1 is 1.0."""
    read_back = _encode(from_json(to_json(config)), with_places=False)
    return hashlib.sha256(json.dumps(read_back, sort_keys=True).encode()).hexdigest()[:16]


def differences(old: TrainConfig, new: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Returns the fields in which two configs differ, such as ``optim.lr``, with the old value and the new one."""
    return {name: (before, after) for name, (before, after) in differing(old, new).items()}


def differing(*configs: TrainConfig) -> dict[str, tuple[Any, ...]]:
    """Returns the fields in which configs are not all the same, with the value that each has, or None for no such
    field."""
    flat = [_flatten(_encode(one, with_places=False)) for one in configs]
    values = {name: tuple(one.get(name) for one in flat) for name in sorted(set().union(*flat))}
    return {name: found for name, found in values.items() if any(one != found[0] for one in found)}


def without_places(config: Config) -> Config:
    """Returns a config without what says where something lay on the machine that it was made on."""
    assert dataclasses.is_dataclass(config)
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.metadata == PLACE:
            changes[field.name] = field.default
        elif dataclasses.is_dataclass(value):
            changes[field.name] = without_places(value)
    cleared: Config = dataclasses.replace(config, **changes)  # type: ignore[type-var]
    return cleared


def _flatten(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in data.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _encode(value: Any, with_places: bool = True) -> Any:
    if isinstance(value, LoopPlan):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        encoded = {
            field.name: _encode(getattr(value, field.name), with_places)
            for field in dataclasses.fields(value)
            if with_places or field.metadata != PLACE
        }
        if not isinstance(value, CHOICES):
            return encoded
        origin = tasks.origin_of(value.name) if with_places and isinstance(value, Source) else None
        return {"name": value.name, **({IMPORT: origin} if origin else {}), **encoded}
    if isinstance(value, float) and math.isinf(value):
        return str(value)  # JSON has no number for it
    return list(value) if isinstance(value, tuple) else value


def decode(kind: Any, value: Any, where: str) -> Any:
    """Returns a value of this kind, often a dataclass, from what JSON has of it; a ConfigError names what is wrong."""
    if kind is LoopPlan:
        try:
            return LoopPlan.parse(_expect(str, value, where))
        except PlanError as error:
            first_line, *_ = str(error).splitlines()  # the others point at a character of it
            raise ConfigError(f"{where}: {first_line}") from None
    if kind in CHOICES:
        if where.count(".") > DEEPEST:
            raise ConfigError(f"{where}: nested too deep")
        settings = dict(_expect(dict, value, where))
        name = settings.pop("name", None)
        kinds = _kinds_of(kind)
        origin = _expect(str, settings.pop(IMPORT), f"{where}.{IMPORT}") if IMPORT in settings else ""
        if not isinstance(name, str) or name not in kinds:
            allowed = _how_to_import(origin) if origin else " | ".join(kinds)
            raise ConfigError(f"{where}.name={shown(name)}: allowed is {allowed}")
        return decode(kinds[name], settings, where)
    if dataclasses.is_dataclass(kind):
        return _decode_fields(kind, _expect(dict, value, where), where)
    if get_origin(kind) in (Union, types.UnionType):
        (wanted,) = (option for option in get_args(kind) if option is not type(None))
        return None if value is None else decode(wanted, value, where)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ConfigError(f"{where}={shown(value)}: allowed is {' | '.join(map(str, get_args(kind)))}")
        return value
    if get_origin(kind) is tuple:
        element, *others = get_args(kind)
        length = len(_expect(list, value, where))
        if others != [...] and length != 1 + len(others):
            raise ConfigError(f"{where}={shown(value)}: allowed are {1 + len(others)} values")
        return tuple(decode(element, v, f"{where}[{i}]") for i, v in enumerate(value))
    if get_origin(kind) is dict:
        _, element = get_args(kind)
        return {name: decode(element, v, f"{where}.{shown(name)}") for name, v in _expect(dict, value, where).items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(_expect(int, value, where))
    if kind is float and value in ("inf", "-inf"):
        return float(value)
    return _expect(kind, value, where)


def _how_to_import(origin: str) -> str:
    """Returns what makes a task known that a run's file names; the code is the user's to trust, and theirs to name."""
    missing = origin.endswith(".py") and not Path(origin).exists()
    also = ", which is not there: give where it is now" if missing else ""
    return f"a task that is known; add --import {shlex.quote(origin[:300])}{also} (in Python, import it first)"


def _decode_fields(kind: Any, data: dict[str, Any], where: str) -> Any:
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in data.keys() - fields.keys():
        raise ConfigError(f"{where}.{shown(name)}: no such field; allowed are {', '.join(fields)}")
    for name in fields.keys() - data.keys():
        if fields[name].metadata != PLACE:
            raise ConfigError(f"{where}.{name}: missing")
    return kind(**{name: decode(hints[name], value, f"{where}.{name}") for name, value in data.items()})


def _expect(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ConfigError(f"{where}={shown(repr(value))}: allowed is a value of type {kind.__name__}")
    if isinstance(value, int) and value not in INT64:  # as long as what is written can be read back
        raise ConfigError(f"{where}={shown(value)}: allowed are numbers of 64 bits")
    if isinstance(value, float) and math.isnan(value):
        raise ConfigError(f"{where}={value}: allowed is a number")
    return value


def shown(value: Any) -> str:
    """Returns a value as it fits into the line of an error message."""
    long = isinstance(value, int) and abs(value) >= 2**64
    text = hex(value) if long else str(value)  # Python refuses to write thousands of decimal digits
    return (text if text.isprintable() else repr(text))[:80]
