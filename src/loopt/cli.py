"""The command line. A command is a file in ``commands``, imported when it is called: importing torch takes seconds."""

from __future__ import annotations

import faulthandler
import importlib
import io
import itertools
import os
import sys
from collections.abc import Sequence

from loopt._version import __version__
from loopt.commands import COMMANDS
from loopt.commands.completion import complete, install
from loopt.commands.first_screens import kept_screen, refuse_unknown
from loopt.errors import InputError, PlanError, not_known
from loopt.report.screen import printable

USAGE = """\
usage: loopt COMMAND ...

Looped transformers: models that think longer by running the same layers again.

  loopt reproduce quick            train three small models and see looping work (minutes, no GPU)
  loopt train PRESET [options]     train a model, or resume a run that was stopped
  loopt eval RUN [--loops 1 2 4]   measure a trained model, with any number of loops
  loopt eval RUN --suite paper     the paper's 19 downstream tasks, also on Hugging Face models
  loopt lm-eval ...                lm-evaluation-harness on our runs
  loopt generate RUN --prompt ...  have it write, with any number of loops
  loopt score RUN --text ...       what it makes of a text: log-probabilities, bits per byte
  loopt runs [compare | clean]     the runs in a folder, what tells them apart, and what can be deleted
  loopt tasks list | show NAME     the reasoning tasks, and an instance of one
  loopt data prepare | show DIR    text to tokens that a language model trains on
  loopt thoughts [RUN] --page      a page that shows a problem being solved, loop by loop
  loopt analyze gap | scaling | …  what looping gives: % Gap, depth, loops, layers alike, early exits, caches
  loopt report WHAT | --all        a page of an experiment, a folder of runs, or everything of the paper
  loopt plan "4x(1,4,1)" [sizes]   draw a plan, with its parameters and FLOPs
  loopt prove THEOREM              the paper's theorems, as weights that are built, run and checked
  loopt export RUN DIR             a folder that Transformers loads anywhere
  loopt import DIR RUN             a run of such a folder, or of a published looped model (Ouro)

Every command explains itself with --help, and lists all its options with --help-all. loopt --version prints the
version; loopt --install-completion has your shell complete commands and options; --import my_task.py makes tasks of
your own known to any command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    if sys.__stderr__ is not None and not faulthandler.is_enabled():
        faulthandler.enable(sys.__stderr__)  # a crash within a kernel or a driver says where it was
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an encoding without ⊗ prints ? instead of failing
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except PlanError as error:  # points at a character with a line of its own
        print(f"loopt: {error}", file=sys.stderr)
        return 2
    except InputError as error:
        print(f"loopt: {printable(error)}", file=sys.stderr)
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # the reader, such as head, has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
            return 0
        if error.filename is None:
            raise
        print(f"loopt: {printable(error.filename)}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("loopt: interrupted", file=sys.stderr)
        return 130


def _dispatch(arguments: list[str]) -> int:
    imports = "--import" in arguments
    if imports:
        arguments = importlib.import_module("loopt.commands.importing").import_named(arguments)
    command = arguments[0] if arguments else "--help"
    if command in ("-h", "--help", "--help-all"):
        print(USAGE, end="")
        return 0
    if command == "--version":
        print(f"loopt {__version__}")
        return 0
    if command in ("--install-completion", "--complete"):
        return (install if command == "--install-completion" else complete)(arguments[1:])
    if command not in COMMANDS:
        raise not_known("command", command, COMMANDS)
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    if not imports and arguments[len(words) :] in (["-h"], ["--help"]):
        screen = kept_screen(" ".join(words))
        if screen is not None:
            print(screen, end="")
            return 0
    if not imports:
        refuse_unknown(words)
    module = importlib.import_module(f"loopt.commands.{command.replace('-', '_')}")
    code: int = module.main(arguments[1:])
    return code
