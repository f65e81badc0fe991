"""What every command prints for --help, kept as text: it comes at once, while the commands import torch for seconds. So
does what was probably meant by a name that there is none of.

`make screens` writes first_screens.txt anew from the commands themselves.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from loopt.errors import not_known

FILE = Path(__file__).with_suffix(".txt")
MARK = "=== loopt "
OPTIONS = "options:"

CHOICES = {
    "reproduce": "experiment",
    "train": "preset",
    "runs": "runs command",
    "tasks": "tasks command",
    "tasks show": "task",
    "tasks audit": "task",
    "data": "data command",
    "analyze": "analysis",
    "prove": "theorem",
}
"""What the word after a command's names; every one that is allowed has a kept screen."""


def kept_screen(words: str) -> str | None:
    """Returns the kept screen of a command, such as "train phop-cpu"; None for one that is asked itself."""
    kept = _kept().get(words)
    return None if kept is None else f"{kept.partition(chr(10))[2].strip()}\n"


def kept_options() -> dict[str, list[str]]:
    """Returns the names of all options of every command."""
    return {words: text.partition("\n")[0].removeprefix(OPTIONS).split() for words, text in _kept().items()}


def refuse_unknown(words: Sequence[str]) -> None:
    """Raises what a command would say of a name that there is none of, such as "train phop-cpuu". Where there may
    be tasks of the user's own, registered in this process or by an installed package, it is for the command to say."""
    if "loopt.tasks" in sys.modules:
        return
    kept = _kept()
    for n in range(1, len(words)):
        before = " ".join(words[:n])
        if before not in CHOICES:
            return
        below = [one.removeprefix(f"{before} ") for one in kept if one.startswith(f"{before} ")]
        allowed = [one for one in below if " " not in one]
        if words[n] not in allowed and not entry_points(group="loopt.tasks"):
            raise not_known(CHOICES[before], words[n], allowed)


def _kept() -> dict[str, str]:
    """Returns what is kept of each command: a line with all its options, then its screen."""
    _, *kept = f"\n{FILE.read_text(encoding='utf-8')}".split(f"\n{MARK}")
    return dict(one.split("\n", 1) for one in kept)


def screens_now() -> str:
    """Returns what the file has to hold, by asking every command."""
    kept = []
    for words in commands():
        names = re.findall(r"^  (?:-\w, )?(--[\w.-]+)", _asked(words, "--help-all"), re.MULTILINE)
        options = " ".join([OPTIONS, *dict.fromkeys(names)])
        kept.append(f"{MARK}{words}\n{options}\n\n{_asked(words, '--help').strip()}\n")
    return "\n".join(kept)


def commands() -> Iterator[str]:
    """Yields every command with a screen of its own."""
    from loopt import tasks
    from loopt.commands import COMMANDS
    from loopt.commands.analyze import FILES as analyses
    from loopt.reproduce.catalogue import EXPERIMENTS, LANGUAGE
    from loopt.training.presets import PRESETS

    below = {
        "reproduce": ["quick", *EXPERIMENTS, *LANGUAGE, "status", "table"],
        "train": list(PRESETS),
        "eval": ["render", "predict", "score"],
        "tasks": [
            "list",
            "show",
            "audit",
            *(f"{action} {name}" for action in ("show", "audit") for name in tasks.names()),
        ],
        "data": ["prepare", "tokenizer", "show"],
        "analyze": list(analyses),
        "prove": ["group-composition", "simulation", "phop", "cot", "lemmas", "all"],
        "runs": ["list", "compare", "clean"],
    }
    for command in COMMANDS:
        yield command
        yield from (f"{command} {name}" for name in below.get(command, []))


def _asked(words: str, option: str) -> str:
    command, *arguments = words.split()
    module = importlib.import_module(f"loopt.commands.{command.replace('-', '_')}")
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        module.main([*arguments, option])
    return said.getvalue()


if __name__ == "__main__":
    FILE.write_text(screens_now(), encoding="utf-8")
    print(f"{FILE}: {len(_kept())} screens")
