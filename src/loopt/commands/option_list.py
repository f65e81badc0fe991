"""The options of a command as its help shows them: a first screen of those that people change, and all by group."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import tyro

WIDTH = 88
NAMES = 26
"""Columns for an option's name, before its sentence; a longer one has a line of its own."""
COMMAND_LINES = ("loopt ", "torchrun ")


@dataclass(frozen=True)
class Option:
    """One option: how it is written, what it is for, and the part of the settings it belongs to."""

    name: str
    """Without its dashes; of a positional argument, what stands for it."""
    written: str
    sentence: str
    default: str
    part: tuple[str, ...]
    """The fields that lead to it, such as config and model; none for the command's own options."""

    @classmethod
    def of(cls, action: argparse.Action) -> Option:
        positive = [written for written in action.option_strings if "--no-" not in written and ".no-" not in written]
        name, value = max(positive, key=len, default=""), _value(action)
        sentence, _, told = (action.help or "").removesuffix(" (required)").rpartition("(default: ")
        if not sentence:
            sentence, told = told, ""
        default = told.removesuffix(")")
        if not name:
            return cls(value, value, _one_line(sentence), "", ())
        part = tuple(action.dest.replace("-", "_").split(".")[:-1])
        if action.nargs == 0:  # a switch
            written = ", ".join(action.option_strings if default == "True" else positive)
            return cls(name.lstrip("-"), written, _one_line(sentence), "on" if default == "True" else "", part)
        shown = "required" if action.required else "" if default in ("None", "''") else default
        return cls(name.lstrip("-"), f"{', '.join(positive)} {value}", _one_line(sentence), shown, part)

    def lines(self) -> Iterator[str]:
        """Yields the option and its sentence, in two columns."""
        told = f"{self.sentence} ({self.default})" if self.default else self.sentence
        sentence = textwrap.wrap(told, WIDTH - NAMES - 2, break_on_hyphens=False, break_long_words=False)
        first = f"  {self.written}"
        if len(first) > NAMES:
            yield first
        else:
            yield f"{first:<{NAMES}}  {sentence.pop(0) if sentence else ''}".rstrip()
        for line in sentence:
            yield f"{'':<{NAMES}}  {line}"


@dataclass(frozen=True)
class OptionList:
    """All options of a command, with what it does and examples of it."""

    prog: str
    description: str
    options: tuple[Option, ...]
    titles: Mapping[tuple[str, ...], str]
    """What each part of the settings is about, in a sentence."""

    @classmethod
    def of(cls, kind: type, settings: Mapping[str, Any], without: Sequence[str]) -> OptionList:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            parser = tyro.extras.get_parser(kind, **settings)
        actions = [action for action in parser._actions if action.dest != "help"]
        options = tuple(one for one in map(Option.of, actions) if one.name not in without)
        default = settings.get("default")
        titles = {part: _title(kind, default, part) for part in dict.fromkeys(one.part for one in options) if part}
        return cls(settings["prog"], parser.description or "", options, titles)

    @property
    def names(self) -> list[str]:
        return [f"--{one.name}" for one in self.options if one.written.startswith("-")]

    def first_screen(self, first: Sequence[str]) -> str:
        """Returns what the command does, examples, and the options of these names; all of them where none is named."""
        by_name = {one.name: one for one in self.options}
        positional = [one for one in self.options if not one.written.startswith("-")]
        shown = [*positional, *(by_name[name] for name in first)] if first else list(self.options)
        lines = [*self._heading(), *(line for one in shown for line in one.lines())]
        hidden = len(self.options) - len(shown)
        if hidden:
            lines += ["", f"{hidden} more options, by group: {self.prog} --help-all"]
        return "\n".join(lines) + "\n"

    def whole_screen(self) -> str:
        """Returns what the command does, examples, and every option under the part of the settings it belongs to."""
        lines = [*self._heading(), *(line for one in self.options if not one.part for line in one.lines())]
        for part, title in self.titles.items():
            lines += ["", *textwrap.wrap(title, WIDTH), ""]
            lines += [line for one in self.options if one.part == part for line in one.lines()]
        return "\n".join(lines) + "\n"

    def _heading(self) -> Iterator[str]:
        positional = "".join(f" {one.written}" for one in self.options if not one.written.startswith("-"))
        yield f"usage: {self.prog}{positional} [options]"
        yield ""
        paragraphs = re.split(r"\n\s*\n", self.description.strip())
        for paragraph, following in zip(paragraphs, [*paragraphs[1:], ""], strict=True):
            yield from _wrapped(paragraph.splitlines())
            if not (paragraph.startswith(COMMAND_LINES) and following.startswith(COMMAND_LINES)):
                yield ""


def _wrapped(lines: list[str]) -> Iterator[str]:
    """Yields a paragraph wrapped anew, with commands as they are, indented."""
    words: list[str] = []
    for line in [*lines, ""]:
        if line and not line.startswith(COMMAND_LINES):
            words.append(line)
            continue
        together = " ".join(words).replace("For example", "For\u00a0example")  # who looks for examples finds them
        yield from (wrapped.replace("\u00a0", " ") for wrapped in textwrap.wrap(together, WIDTH))
        words = []
        if line:
            yield f"  {line}"


def _value(action: argparse.Action) -> str:
    """Returns what stands for the value: INT, INT ..., a|b|c; of a positional argument, its name."""
    if not action.option_strings:
        return action.dest.upper() + (" ..." if action.nargs == "*" else "")
    written = str(action.metavar or action.dest.upper()).replace("{None}|", "")
    several = re.fullmatch(r"\[(\S+) \[.*\]\]", written)
    one = several[1] if several else written
    return re.sub(r"\{(.*?)\}", lambda choices: choices[1].replace(",", "|"), one) + (" ..." if several else "")


def _title(kind: Any, default: Any, part: tuple[str, ...]) -> str:
    """Returns the first line of the docstring of what these fields lead to."""
    for name in part:
        default = getattr(default, name, None)
        kind = get_type_hints(kind)[name] if default is None else type(default)
    documented = kind if not (kind.__doc__ or "").startswith(f"{kind.__name__}(") else sys.modules[kind.__module__]
    return _one_line((documented.__doc__ or "").strip().splitlines()[0])


def _one_line(text: str) -> str:
    return " ".join(text.split())
