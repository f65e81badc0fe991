"""docs/architecture.md says which room imports which; the code does just that."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]
PACKAGE = HOME / "src" / "loopt"


def rooms() -> list[str]:
    """Every module and package right below loopt, but for the package itself and ``python -m loopt``."""
    paths = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return sorted(path.stem for path in paths if path.stem not in ("__init__", "__main__"))


def imported(room: str) -> set[str]:
    """The rooms that a room imports, also within functions and for type checking."""
    found: set[str] = set()
    files = [PACKAGE / f"{room}.py"] if (PACKAGE / f"{room}.py").exists() else list((PACKAGE / room).rglob("*.py"))
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "loopt":
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("loopt."):
                found.add((node.module or "").split(".")[1])
            elif isinstance(node, ast.Import):
                found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("loopt.")}
    return (found & set(rooms())) - {room}


def table() -> dict[str, set[str]]:
    """The rows of the table under "Imports", in order."""
    text = (HOME / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("\n## Imports\n")[2].partition("\n## ")[0]
    rows = [row.strip("|").split("|") for row in section.splitlines() if row.startswith("| `")]
    return {
        room: set(re.findall(r"`(\w+)`", imports)) for names, imports in rows for room in re.findall(r"`(\w+)`", names)
    }


@pytest.mark.parametrize("room", rooms())
def test_a_room_imports_what_the_table_says(room: str) -> None:
    assert imported(room) == table()[room]


def test_imports_point_one_way() -> None:
    seen: set[str] = set()
    for room, imports in table().items():
        assert imports <= seen, f"{room} imports what stands below it"
        seen.add(room)
    assert seen == set(rooms())


@pytest.mark.parametrize("module", ["errors", "limits", "plan", "attention", "model_config", "model"])
def test_what_an_exported_model_carries_needs_torch_alone(module: str) -> None:
    tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    others = {name.split(".")[0] for name in names} - {"torch", "loopt"}
    assert others <= set(__import__("sys").stdlib_module_names)


def test_no_file_and_no_function_is_too_long_to_read() -> None:
    for file in PACKAGE.rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        assert source.count("\n") <= 450, file
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 60, f"{file}: {node.name}"
