"""Writes build/docs, which the site is built from: the pages beside this file, and references made from the code
and from the result files.

    python docs/build.py && zensical build --strict     # make docs does both

Pages link to files of the repository outside docs/. Pages and pictures among them are brought along; a link to anything
else becomes the file's name.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

os.environ["COLUMNS"] = "100"  # how wide help is printed, read when tyro is imported

from loopt.cli import COMMANDS, main

HOME = Path(__file__).parents[1]
BUILD = HOME / "build" / "docs"

# Pages from elsewhere in the repository, and where they stand on the site.
MOVED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}

# Commands with a help screen for each of their subcommands.
SUBCOMMANDS: dict[str, Sequence[str]] = {
    "reproduce": ["phop"],
    "train": ["phop-cpu", "lm-cpu"],
    "eval": ["render", "predict", "score"],
    "runs": ["compare", "clean"],
    "tasks": ["list", "show phop", "audit phop"],
    "data": ["tokenizer", "prepare", "show"],
    "analyze": ["gap", "difference", "scaling", "isoplot", "similarity", "loops", "probe", "exit", "cache", "drafts"],
    "prove": ["group-composition"],
}

# The pages of the Python reference: title, and the modules on it with their public names.
PYTHON: dict[str, tuple[str, Sequence[str]]] = {
    "models.md": ("Models and runs", ["loopt", "loopt.generation", "loopt.runs"]),
    "data.md": (
        "Tasks and text",
        [
            *("loopt.tasks", "loopt.source", "loopt.text.source", "loopt.text.prepare", "loopt.text.tokenizer"),
            *("loopt.text.token_data", "loopt.text.order", "loopt.text.task_documents"),
        ],
    ),
    "training.md": ("Training", ["loopt.training", "loopt.training.presets"]),
    "measuring.md": (
        "Evaluation and analysis",
        [
            *("loopt.scoring", "loopt.evaluation.measure", "loopt.evaluation.rendering", "loopt.evaluation.predict"),
            *("loopt.evaluation.scores", "loopt.evaluation.exchange", "loopt.analysis", "loopt.analysis.scaling"),
        ],
    ),
    "theory.md": (
        "Theory",
        [
            *("loopt.theory.formal", "loopt.theory.precision", "loopt.theory.group_composition", "loopt.theory.phop"),
            *("loopt.theory.simulation", "loopt.theory.chain_of_thought", "loopt.theory.saved"),
        ],
    ),
}


def build() -> None:
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(HOME / "docs", BUILD, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for page in sorted((HOME / "docs").glob("*.md")):
        bring_page(page, BUILD / page.name)
    for name, place in MOVED.items():
        bring_page(HOME / name, BUILD / place)
    reference = BUILD / "reference"
    reference.mkdir()
    (reference / "commands.md").write_text(command_reference(), encoding="utf-8")
    with contextlib.chdir(HOME), contextlib.redirect_stdout(io.StringIO()):
        main(["report", "--all", "--prove", "--results", "results", "--out", str(reference / "artefacts.md")])
    for name, (title, modules) in PYTHON.items():
        (reference / name).write_text(python_reference(title, modules), encoding="utf-8")


def bring_page(page: Path, place: Path) -> None:
    """Writes a page of the repository to its place on the site, with its links led to theirs."""

    def lead(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if not path or target.startswith(("http:", "https:")):
            return match[0]
        file = (page.parent / path).resolve()
        if mark and file.suffix == ".svg" and "currentColor" in (drawing := file.read_text(encoding="utf-8")):
            return f"<div>\n{drawing}</div>"  # in the page its colors follow the site's light and dark
        found = place_of(file)
        if found is None:
            return f"{text} (`{file.relative_to(HOME)}`)"
        return f"{mark}[{text}]({os.path.relpath(BUILD / found, place.parent)}{hash_}{anchor})"

    text = page.read_text(encoding="utf-8")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", lead, text), encoding="utf-8")


def place_of(file: Path) -> PurePosixPath | None:
    """Returns where a file of the repository is on the site, brought there if need be, or None if it is not."""
    name = file.relative_to(HOME).as_posix()
    if name in MOVED:
        return PurePosixPath(MOVED[name])
    if file.is_relative_to(HOME / "docs"):
        return PurePosixPath(name).relative_to("docs")
    if file.suffix not in (".md", ".png", ".svg"):
        return None
    if not (BUILD / name).exists():
        (BUILD / name).parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            bring_page(file, BUILD / name)
        else:
            shutil.copy(file, BUILD / name)
    return PurePosixPath(name)


def command_reference() -> str:
    about = "What each command prints with `--help-all`; `--help` has the options that people change."
    parts = [f"# Commands\n\n{about}\n", f"```text\n{help_of([])}```\n"]
    for command in COMMANDS:
        parts.append(f"## loopt {command}\n\n```text\n{help_of([command])}```\n")
        for sub in SUBCOMMANDS.get(command, ()):
            parts.append(f"### loopt {command} {sub}\n\n```text\n{help_of([command, *sub.split()])}```\n")
    return "\n".join(parts)


def help_of(arguments: Sequence[str]) -> str:
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            code: object = main([*arguments, "--help-all"])
    except SystemExit as stop:
        code = stop.code
    text = out.getvalue()
    if code or not text.strip():
        raise SystemExit(f"loopt {' '.join(arguments)} --help: ended with {code} and {len(text)} characters")
    return text if text.endswith("\n") else text + "\n"


def python_reference(title: str, modules: Sequence[str]) -> str:
    parts, seen = [f"# {title}\n"], set[str]()
    for module in modules:
        for name in public_objects(importlib.import_module(module)):
            if name not in seen:
                seen.add(name)
                parts.append(f"::: {name}\n")
    return "\n".join(parts)


def public_objects(module: Any) -> Iterator[str]:
    """Yields where each class and function that a module offers is defined."""
    for name in getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]:
        found = getattr(module, name)
        here = hasattr(module, "__all__") or getattr(found, "__module__", "") == module.__name__
        if here and (inspect.isclass(found) or inspect.isfunction(found)):
            yield f"{found.__module__}.{found.__qualname__}"


if __name__ == "__main__":
    build()
