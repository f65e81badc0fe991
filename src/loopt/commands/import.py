"""loopt import DIR RUN"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from loopt.commands.parsing import parse_options


@dataclass(frozen=True)
class Options:
    """Make a run of a model that Transformers saved: one that `loopt export` wrote, also after further training, or a
    published looped model whose weights fit ours (Ouro). For example:

    loopt import exported/lm-cpu runs/back

    The folder's Python files are not run.
    """

    folder: tyro.conf.Positional[Path]
    """Folder of the saved model."""
    run: tyro.conf.Positional[Path]
    """Directory of the run; a new one."""


def main(arguments: list[str]) -> int:
    options = parse_options(Options, arguments, "loopt import")
    from loopt.hf.import_run import import_folder

    run = import_folder(options.folder, options.run)
    print(f"{options.run}: plan {run.config.model.plan}, {run.config.model.parameters():,} parameters")
    return 0
