"""Which tasks there are: loopt's own, and those of scripts and packages, which register theirs.

A script's task is known once the script is imported, by Python or by ``--import``. A package that names its tasks as
entry points of the group ``loopt.tasks`` has them known wherever it is installed. Nothing else is ever imported: a run
remembers where its task came from, but only says so.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
import warnings
from dataclasses import MISSING, fields
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TypeVar

from loopt.errors import InputError
from loopt.tasks.base import Task

ENTRY_POINTS = "loopt.tasks"
OTHER_SOURCES = ("text", "after_start", "binary_addition")
"""Names of what a model trains on besides the tasks that are known here."""

Kind = TypeVar("Kind", bound=type[Task])

_known: dict[str, type[Task]] = {}
_origins: dict[str, str] = {}
"""What to import for a task that is not loopt's own: the path of a script, or the name of a module."""
_importing: list[str] = []
"""What is being imported right now, in the user's words: the origin of whatever registers meanwhile."""
_entry_points_left: list[EntryPoint] = list(entry_points(group=ENTRY_POINTS))


def register(task: Kind) -> Kind:
    """Makes a task known to every command and to ``tasks.get`` by its name. A decorator, above ``@dataclass``:

    @register
    @dataclass(frozen=True)
    class Parity(Task):
        name = "parity"
    """
    _check_class(task)
    origin, other = _origin_of(task), _known.get(task.name)
    if other is not None and (other.__qualname__, _origins.get(task.name)) != (task.__qualname__, origin):
        first = f"{other.__qualname__} of {_origins.get(task.name, 'loopt')}"
        raise InputError(
            f"task {task.name!r} is the name of {first} and of {task.__qualname__} of {origin}; allowed is a name of "
            "its own for each"
        )
    _known[task.name] = task
    if not task.__module__.startswith("loopt."):
        _origins[task.name] = origin
    return task


def known() -> dict[str, type[Task]]:
    """Returns every task by its name, those of installed packages too."""
    while _entry_points_left:
        _load(_entry_points_left.pop(0))
    return _known


def origin_of(name: str) -> str | None:
    """Returns what to import for the task of that name, or None where it is loopt's own."""
    return _origins.get(name)


def import_tasks(what: str) -> None:
    """Imports a script, by its path, or an installed module, by its name, for the tasks that it registers."""
    is_script = what.endswith(".py") or "/" in what or "\\" in what
    path = Path(what).resolve()
    if what in sys.modules or any(getattr(module, "__file__", None) == str(path) for module in [*sys.modules.values()]):
        return  # what it registers is known
    before = dict(_known)
    _importing.append(str(path) if is_script else what)
    try:
        _import_script(what, path) if is_script else _import_module(what)
    finally:
        _importing.pop()
    if _known == before:
        raise InputError(f"import={what}: it registers no task; allowed is one with @loopt.tasks.register above a Task")


def _check_class(task: type[Task]) -> None:
    """Raises an InputError, before the class is used, for what its author may have forgotten."""
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise InputError(f"register: {task!r}; allowed is a class derived from loopt.tasks.Task")
    name, where = getattr(task, "name", None), f"task class {task.__qualname__}"
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise InputError(f"{where}: name={name!r}; allowed are lowercase letters, digits and _, a letter first")
    if name in OTHER_SOURCES:
        raise InputError(f"{where}: name={name!r}; allowed is another, since models train on {name}, too")
    if "__dataclass_fields__" not in vars(task):
        raise InputError(f"{where}: no dataclass; allowed is @dataclass(frozen=True), right below @register")
    missing = sorted(getattr(task, "__abstractmethods__", ()))
    if missing:
        raise InputError(f"{where}: it has no {', '.join(missing)}; allowed is a class that defines all of them")
    for field in fields(task):
        if field.default is MISSING and field.default_factory is MISSING:
            raise InputError(f"{where}: its setting {field.name} has no default; allowed are settings with one")


def _origin_of(task: type[Task]) -> str:
    if _importing:
        return _importing[-1]
    if task.__module__ == "__main__":
        script = getattr(sys.modules["__main__"], "__file__", None)
        return str(Path(script).resolve()) if script else "__main__"
    return task.__module__


def _load(entry: EntryPoint) -> None:
    """Loads an entry point, a class or a module that registers some. A package that fails is reported, no more: other
    tasks do not need it."""
    _importing.append(entry.module)
    try:
        found = entry.load()
        if isinstance(found, type) and found not in _known.values():
            register(found)
    except Exception as error:
        package = entry.dist.name if entry.dist else "?"
        told = f"task {entry.name} of the package {package} is left out: {type(error).__name__}: {error}"
        warnings.warn(told, stacklevel=2)
    finally:
        _importing.pop()


def _import_script(what: str, path: Path) -> None:
    if not path.is_file():
        raise InputError(f"import={what}: no such file; allowed is the path of a Python script, or a module's name")
    # Any file name will do, and none of them can stand in for a module of that name.
    spec = importlib.util.spec_from_file_location(f"loopt-import:{path}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"import={what}: allowed is a Python script, a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for what lies beside it; last, so that it replaces no installed module
    try:
        spec.loader.exec_module(module)
    except InputError:
        del sys.modules[spec.name]
        raise
    except Exception as error:
        del sys.modules[spec.name]
        raise InputError(f"import={what}: {_told(error, path)}") from error


def _import_module(what: str) -> None:
    try:
        importlib.import_module(what)
    except InputError:
        raise
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name is not None and what.startswith(error.name)
        if not missing and not isinstance(error, ValueError | TypeError):
            raise InputError(f"import={what}: {type(error).__name__}: {error}") from error
        hint = f"; the file here is {what}.py" if Path(f"{what}.py").is_file() else ""
        allowed = "allowed is the path of a Python script, or the name of an installed module"
        raise InputError(f"import={what}: no such module; {allowed}{hint}") from None


def _told(error: Exception, path: Path) -> str:
    """Returns what went wrong, with the last line of the script that was running."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    said = error.msg if isinstance(error, SyntaxError) else error
    where = f"line {line}: " if line else ""
    return f"{where}{type(error).__name__}: {said}"
