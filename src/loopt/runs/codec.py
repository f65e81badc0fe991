"""A config as JSON and back. Reading checks every name and type, so that a typo is an error and not a default."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from loopt import tasks
from loopt.errors import ConfigError, PlanError
from loopt.plan import LoopPlan
from loopt.runs.config import PLACE, TrainConfig
from loopt.tasks.base import ADDED_LATER

PLACES = {field.name for field in dataclasses.fields(TrainConfig) if field.metadata == PLACE}


def to_json(config: TrainConfig) -> dict[str, Any]:
    encoded: dict[str, Any] = _encode(config)
    return encoded


def from_json(data: Any) -> TrainConfig:
    config: TrainConfig = _decode(TrainConfig, data, "config")
    return config


def fingerprint(config: TrainConfig) -> str:
    """A short hash of everything that decides the run's result. Hashed as it will be read back, where lr=1 is 1.0, and
    without the fields added later that are at their default, as if they had never been added."""
    read_back = _encode(from_json(to_json(config)), for_hashing=True)
    return hashlib.sha256(json.dumps(read_back, sort_keys=True).encode()).hexdigest()[:16]


def differences(old: TrainConfig, new: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """The fields in which two configs differ, such as ``optim.lr``, with the old value and the new one."""
    before, after = (_flatten({k: v for k, v in to_json(one).items() if k not in PLACES}) for one in (old, new))
    return {
        name: (before.get(name), after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    }


def _flatten(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in data.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _encode(value: Any, for_hashing: bool = False) -> Any:
    if isinstance(value, LoopPlan):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: _encode(getattr(value, field.name), for_hashing)
            for field in dataclasses.fields(value)
            if not for_hashing or _is_hashed(field, getattr(value, field.name))
        }
        return {"name": value.name, **fields} if isinstance(value, tasks.Task) else fields
    return list(value) if isinstance(value, tuple) else value


def _is_hashed(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.metadata == ADDED_LATER:
        made = field.default_factory
        return bool(value != (field.default if made is dataclasses.MISSING else made()))
    return field.metadata != PLACE


def _decode(kind: Any, value: Any, where: str) -> Any:
    if kind is LoopPlan:
        try:
            return LoopPlan.parse(_expect(str, value, where))
        except PlanError as error:
            raise ConfigError(f"{where}: {error}") from None
    if kind is tasks.Task:
        if value is None:
            return None
        settings = dict(_expect(dict, value, where))
        name = settings.pop("name", None)
        if not isinstance(name, str) or name not in tasks.registry:
            raise ConfigError(f"{where}.name={name}: allowed is {' | '.join(tasks.registry)}")
        return _decode(tasks.registry[name], settings, where)
    if dataclasses.is_dataclass(kind):
        return _decode_fields(kind, _expect(dict, value, where), where)
    if get_origin(kind) in (Union, types.UnionType):
        (wanted,) = (option for option in get_args(kind) if option is not type(None))
        return None if value is None else _decode(wanted, value, where)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ConfigError(f"{where}={value}: allowed is {' | '.join(map(str, get_args(kind)))}")
        return value
    if get_origin(kind) is tuple:
        element, *others = get_args(kind)
        length = len(_expect(list, value, where))
        if others != [...] and length != 1 + len(others):
            raise ConfigError(f"{where}={value}: allowed are {1 + len(others)} values")
        return tuple(_decode(element, v, f"{where}[{i}]") for i, v in enumerate(value))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _expect(kind, value, where)


def _decode_fields(kind: Any, data: dict[str, Any], where: str) -> Any:
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in data.keys() - fields.keys():
        raise ConfigError(f"{where}.{name}: no such field; allowed are {', '.join(fields)}")
    for name in fields.keys() - data.keys():
        if fields[name].metadata not in (ADDED_LATER, PLACE):
            raise ConfigError(f"{where}.{name}: missing")
    return kind(**{name: _decode(hints[name], value, f"{where}.{name}") for name, value in data.items()})


def _expect(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ConfigError(f"{where}={value!r}: allowed is a value of type {kind.__name__}")
    return value
