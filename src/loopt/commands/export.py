"""loopt export RUN DIR"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from loopt.commands.parsing import checkpoint_named, parse_options
from loopt.runs import Run


@dataclass(frozen=True)
class Options:
    """Write a run's model as a folder that Transformers loads, also where loopt is not installed. For example:

    loopt export runs/lm-cpu exported/lm-cpu

    The folder has weights, config, tokenizer, a model card and the model's code:
    AutoModelForCausalLM.from_pretrained("exported/lm-cpu", trust_remote_code=True). `loopt import` brings it back.
    """

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    folder: tyro.conf.Positional[Path]
    """Where to; a new folder."""
    loops: int | None = None
    """How often the loopable block is to run; as often as in training unless given."""
    checkpoint: str = "best"
    """best, last, or a step."""


def main(arguments: list[str]) -> int:
    options = parse_options(Options, arguments, "loopt export")
    run = Run.load(options.run)
    from loopt.hf.export import export_run

    model = export_run(run, options.folder, checkpoint_named(options.checkpoint), options.loops)
    print(f"{options.folder}: plan {model.config.running_plan}, {model.num_parameters():,} parameters")
    return 0
