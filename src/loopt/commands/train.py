"""loopt train PRESET"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from loopt.commands.parsing import choose, first_line, parse_options
from loopt.plan import InputError
from loopt.runs import TrainConfig, read_config
from loopt.training import Outcome, Session, presets, train

USAGE = """\
usage: loopt train PRESET [options]
       loopt train --from RUN/config.json [options]

Train a model. The same command on the same --run goes on where it was stopped or killed.

{presets}

`loopt train PRESET --help` lists every setting; for example:

  loopt train phop-cpu --model.plan 2x2 --optim.lr 3e-3 --run runs/two-by-two --time-limit 60
"""


@dataclass(frozen=True)
class Options:
    run: Path
    """Directory of the run: config, metrics, checkpoints, result."""
    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    session: Annotated[Session, tyro.conf.arg(name="")]


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--from"]:
        if len(arguments) < 2:
            raise InputError("--from: which config? Give the path of a run's config.json")
        source, rest = Path(arguments[1]), arguments[2:]
        prog, default = f"loopt train --from {source}", Options(source.parent, read_config(source), Session())
    else:
        usage = USAGE.format(presets="\n".join(f"  {n:10} {first_line(p)}" for n, p in presets.PRESETS.items()))
        chosen = choose(arguments, usage, "preset", list(presets.PRESETS))
        if chosen is None:
            return 0
        name, rest = chosen
        prog = f"loopt train {name}"
        default = Options(Path("runs") / name, presets.PRESETS[name](), Session())
    example = f"{prog} --model.plan 2x2 --optim.lr 3e-3 --run runs/two-by-two --time-limit 60"
    description = f"Train a model, or go on with a run that was stopped. For example:\n\n{example}"
    options = parse_options(Options, rest, prog, default=default, description=description)
    outcome = train(options.config, options.run, options.session)
    if not outcome.finished:
        return report_stop(outcome, options.run)
    accuracy, examples = outcome.result["accuracy"], outcome.result["test_examples"]
    print(f"{options.run}: {outcome.reason}, step {outcome.step}; accuracy {accuracy:.2%} on {examples} test examples")
    return 0


def report_stop(outcome: Outcome, where: Path) -> int:
    print(f"{where}: {outcome.reason}, saved at step {outcome.step}; the same command goes on from there")
    return 128 + outcome.signal if outcome.signal else 0
