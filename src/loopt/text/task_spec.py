"""Tasks named as sources of text: ``task:assignment?depth=1&rendering=code&shots=5&share=0.1``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

from loopt.errors import InputError
from loopt.limits import LARGEST

if TYPE_CHECKING:  # torch, which tasks need, takes seconds to import
    from loopt.tasks import Task

TASK_PREFIX = "task:"


@dataclass(frozen=True)
class TaskSpec:
    """A task with its settings, and how much of it there is to be: a share of the tokens, or a number of documents."""

    task: Task
    share: float | None
    documents: int | None

    @classmethod
    def parse(cls, spec: str) -> TaskSpec:
        """Returns what ``task:NAME?field=value&…`` says."""
        from loopt import tasks

        shown = f"source {spec[:200]}"
        name, _, query = spec.removeprefix(TASK_PREFIX).partition("?")
        written = [name for name, kind in tasks.known().items() if kind.document is not tasks.Task.document]
        if name not in written:
            raise InputError(
                f"{shown}: no task {name[:40]!r} that is written as text; allowed are {', '.join(written)}"
            )
        types = _settings_of(tasks.known()[name])
        settings: dict[str, Any] = {}
        for setting in query.split("&") if query else ():
            field, equals, value = setting.partition("=")
            if not equals:
                raise InputError(f"{shown}: {setting[:40]!r}; allowed are settings as field=value, with & between them")
            if field not in types:
                raise InputError(f"{shown}: no setting {field[:40]!r}; allowed are {', '.join(types)}")
            if field in settings:
                raise InputError(f"{shown}: {field} is given twice; allowed is once")
            settings[field] = _value(value, types[field], f"{shown}: {field}")
        share, documents = settings.pop("share", None), settings.pop("documents", None)
        if share is not None and not 0 < share < 1:
            raise InputError(f"{shown}: share={share}; allowed is more than 0, less than 1")
        if documents is not None and not 1 <= documents <= LARGEST:
            raise InputError(f"{shown}: documents={documents}; allowed are 1 to {LARGEST}")
        return cls(tasks.get(name, **settings), share, documents)

    def __str__(self) -> str:
        """Returns the spec with all settings, in one order: equal specs have equal texts."""
        amounts = {"share": self.share, "documents": self.documents}
        settings = {field: getattr(self.task, field, None) for field in _settings_of(type(self.task))} | amounts
        written = [f"{field}={_written(value)}" for field, value in settings.items() if value is not None]
        return f"{TASK_PREFIX}{self.task.name}?{'&'.join(written)}"


def _settings_of(kind: type[Task]) -> dict[str, Any]:
    """Returns the settings that a spec may have, with their types: what defines the examples, and how many they are."""
    from loopt.tasks import Task

    of_training = {field.name for field in fields(Task)}
    types = get_type_hints(kind)
    own = {field.name: types[field.name] for field in fields(kind) if field.name not in of_training}
    return own | {"share": float, "documents": int}


_INTEGER = "-?[0-9]{1,18}"
_FORMS: dict[Any, tuple[str, Callable[[str], Any], str]] = {
    float: (r"[0-9]{0,9}\.?[0-9]{1,30}", float, "a number such as 0.1"),
    int: (_INTEGER, int, "an integer"),
    tuple: (
        f"({_INTEGER}(,{_INTEGER})*)?",
        lambda written: tuple(map(int, written.split(","))) if written else (),
        "integers with commas between them, such as 1,2",
    ),
}
"""How a setting of a type is written, how it is read, and what to tell where it is not written so."""


def _value(written: str, kind: Any, what: str) -> Any:
    if (get_origin(kind) or kind) not in _FORMS:
        return written  # a name, which the task itself checks
    pattern, read, allowed = _FORMS[get_origin(kind) or kind]
    if not re.fullmatch(pattern, written):
        raise InputError(f"{what}={written[:40]!r}; allowed is {allowed}")
    return read(written)


def _written(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
