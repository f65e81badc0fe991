"""loopt train PRESET"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from loopt.commands.parsing import choose, first_line, parse_options, path_named
from loopt.errors import InputError
from loopt.limits import require_affordable
from loopt.report.screen import printable
from loopt.runs import StartConfig, TrainConfig, read_config
from loopt.runs.codec import differences
from loopt.runs.optimizers import OPTIMIZERS, with_optimizer
from loopt.runs.start import Start
from loopt.source import Source
from loopt.tasks import AfterStart, Task, origin_of
from loopt.text.source import VOCABULARY, Text
from loopt.training import Callback, Outcome, Session, presets, train
from loopt.training.parallel import Ranks
from loopt.training.trainer import Trainer

USAGE = """\
usage: loopt train PRESET [options]
       loopt train TASK --import my_task.py [options]
       loopt train --from RUN/config.json [options]
       loopt train --from results/NAME/SCALE/RUN.json [options]

Train a model. The same command on the same --run resumes it where it was stopped or killed.

{presets}

`loopt train PRESET --help` lists every setting; for example:

  loopt train phop-cpu --model.plan 2x2 --optim.lr 1e-2 --run runs/two-by-two --time-limit 60
  loopt train lm-cpu --data examples/persuasion
  loopt train phop-cpu --optim.name adamw --optim.lr 5e-3 --run runs/adamw
  loopt train phop-cpu --start.run runs/adamw --p 4 --seed 1 --run runs/more-hops
  torchrun --nproc-per-node 8 -m -- loopt train lm-1b --model.plan 4x6 --data data/pile --parallel fsdp

A language model's --data is a directory that `loopt data prepare` made. Files of text will do too: they are prepared
first, with a tokenizer of {words} words trained on them.
"""


FIRST = ("model.plan", "optim.lr", "steps", "batch-size", "seed", "start.run", "device", "time-limit")
"""Options that people change, of any preset."""
FOR_TEXT = ("micro-batch", "parallel")
"""Options of a session that only language models have a use for."""

FILLED_IN = ("start.weights",)
"""Settings that a run finds out for itself,"""
FILLED_IN_OF_TEXT = ("fingerprint", "end-of-document")
"""and those of text."""


@dataclass(frozen=True)
class Options:
    """What to train, where, and how."""

    run: Path
    """Directory of the run: config, metrics, checkpoints, result."""
    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    session: Annotated[Session, tyro.conf.arg(name="")]


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--from"]:
        if len(arguments) < 2:
            raise InputError("--from: which config? Give the path of a run's config.json, or of a result file")
        given, rest = path_named(arguments[1]), arguments[2:]
        run = given.parent if given.name == "config.json" else Path("runs") / given.stem
        prog, config = f"loopt train --from {given}", read_config(given)
    else:
        about = {name: first_line(presets.PRESETS.get(name, presets.small)) for name in presets.names()}
        width = max(map(len, about))
        lines = "\n".join(f"  {name:{width}} {line}" for name, line in about.items())
        usage = USAGE.format(presets=lines, words=VOCABULARY)
        chosen = choose(arguments, usage, "preset", presets.names())
        if chosen is None:
            return 0
        name, rest = chosen
        prog, run, config = f"loopt train {name}", Path("runs") / name, presets.preset(name)
        if origin := origin_of(config.source.name):
            prog += f" --import {Path(os.path.relpath(origin)) if origin.endswith('.py') else origin}"
    options = _parse(prog, Options(run, config, Session()), rest)
    _require_affordable(options.config, options.session)
    outcome = train(options.config, options.run, options.session, callbacks=[_Announcement()])
    if not Ranks.from_environment().first:  # rank 0 prints for all
        return 128 + outcome.signal if outcome.signal else 0
    if not outcome.finished:
        return report_stop(outcome, options.run)
    print(f"{printable(options.run)}: {outcome.reason}, step {outcome.step}; {_figure(outcome.result)}")
    return 0


def _parse(prog: str, default: Options, arguments: list[str]) -> Options:
    of_text = isinstance(default.config.source, Text)
    data = " --data examples/persuasion" if of_text else ""
    changes = [
        "",
        " --model.plan 2x2 --optim.lr 1e-2 --run runs/two-by-two --time-limit 60",
        " --optim.name adamw --optim.lr 3e-3 --seed 1 --run runs/adamw",
    ]
    examples = "\n\n".join(f"{prog}{data}{one}" for one in changes)
    description = (
        "Train a model. The same command resumes a run that was stopped; other settings need another --run. "
        f"For example:\n\n{examples}\n\n--optim.name {' | '.join(OPTIMIZERS)} takes another optimizer; the settings "
        "of the optimizer and of the rest are below or in --help-all."
    )
    optimizer, arguments = _take_option(arguments, "--optim.name")
    if optimizer is not None:
        config = default.config
        default = replace(default, config=replace(config, optim=with_optimizer(config.optim, optimizer)))
    if _take_option(arguments, "--start.run")[0] is not None:
        default = replace(default, config=_to_be_started(default.config))
    default = replace(default, config=_with_shorter_warmup(default.config, arguments))
    first = ("run", "data", *FIRST) if of_text else ("run", *_own_settings(default.config.source), *FIRST)
    without = (*FILLED_IN, *(FILLED_IN_OF_TEXT if of_text else FOR_TEXT))
    return parse_options(Options, arguments, prog, first, without, default=default, description=description)


def _own_settings(task: Source) -> list[str]:
    """Returns the settings that only tasks of this kind have."""
    if isinstance(task, AfterStart):
        return [f"task.{setting}" for setting in _own_settings(task.task)]
    shared = {field.name for field in fields(Task)}
    return [field.name.replace("_", "-") for field in fields(task) if field.name not in shared]  # type: ignore[arg-type]


def _to_be_started(config: TrainConfig) -> TrainConfig:
    """Returns the config without what it says of the weights it was started from and of the text it was trained on: who
    names a run to start from takes its best weights, and goes on with text of their own."""
    source = config.source
    if isinstance(source, Text):
        source = replace(source, fingerprint="", end_of_document="")
    return replace(config, source=source, start=StartConfig())


def _with_shorter_warmup(config: TrainConfig, arguments: list[str]) -> TrainConfig:
    """Returns the config with its warm-up as large a share of --steps as it was of the preset's, where it would
    otherwise be longer than all steps: a short trial needs one option. Who names a warm-up gets that."""
    arguments = [argument.replace("_", "-") for argument in arguments]
    named, _ = _take_option(arguments, "--optim.warmup-steps")
    given, _ = _take_option(arguments, "--steps")
    before = config.optim.warmup_steps
    steps = int(given) if given and given.isdecimal() and len(given) < 19 else before
    if named is not None or not 0 < steps < before:
        return config
    warmup = before * steps // config.steps
    if Ranks.from_environment().first:
        share = f"{warmup} of {steps} steps, as {before} of {config.steps} before"
        print(f"warm-up: {share}; --optim.warmup-steps sets it", file=sys.stderr)
    return replace(config, optim=replace(config.optim, warmup_steps=warmup))


def _require_affordable(config: TrainConfig, session: Session) -> None:
    """Raises an InputError where the weights with their gradients, or the states that enter the first layer, are more
    than this machine has memory for: the least that training takes."""
    model, at_once = config.model, config.batch_size
    length = model.max_len or config.source.max_len
    if isinstance(config.source, Text):
        at_once = min(session.micro_batch or at_once, at_once)
    elif not model.vocab_size:
        model = replace(model, vocab_size=config.source.vocab_size)
    ranks = Ranks.from_environment().size
    model = replace(model, max_len=length)
    require_affordable(f"training {model.parameters():,} parameters", memory=2 * model.memory() // ranks)
    what = f"a batch of {at_once:,} sequences of {length:,} tokens"
    require_affordable(what, memory=4 * at_once * length * model.d_model // ranks)


def _take_option(arguments: list[str], name: str) -> tuple[str | None, list[str]]:
    """Returns the value of an option that decides which others there are, and the arguments without it."""
    for i, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            return argument.removeprefix(f"{name}="), arguments[:i] + arguments[i + 1 :]
        if argument == name:
            if i + 1 == len(arguments):
                raise InputError(f"{name}: which? Give a value after it")
            return arguments[i + 1], arguments[:i] + arguments[i + 2 :]
    return None, arguments


class _Announcement(Callback):
    """Prints the plan and the number of parameters, and which weights they start from."""

    def begun(self, trainer: Trainer) -> None:
        config, where = trainer.config, printable(trainer.run.directory)
        print(f"{where}: plan {config.model.plan}, {config.model.parameters():,} parameters", file=sys.stderr)
        if trainer.started is not None:
            print(f"{where}: {_told(trainer.started, config)}", file=sys.stderr)


def _told(start: Start, config: TrainConfig) -> str:
    """Returns in words what a run starts from, and where its model differs from that run's."""
    other = start.run.config
    depth = other.plan_of_checkpoint(start.step).depth
    blocks = f"the mean of the {depth // start.block} blocks in " if start.block else ""
    changed = {name: values for name, values in differences(other, config).items() if name.startswith("model.")}
    but = ", ".join(f"{name} {before} there and {now} here" for name, (before, now) in changed.items())
    which = f"step {start.step} of {printable(start.run.directory)}"
    return f"starts from {blocks}the weights of {which}" + (f"; {but}" if but else "")


def _figure(result: dict[str, Any]) -> str:
    if "perplexity" in result:
        return f"perplexity {result['perplexity']:.2f} on {result['test_tokens']:,} tokens of test text"
    return f"accuracy {result['accuracy']:.2%} on {result['test_examples']} test examples"


def report_stop(outcome: Outcome, where: Path) -> int:
    """Prints why training stopped, and returns the exit code."""
    print(f"{printable(where)}: {outcome.reason}, saved at step {outcome.step}; the same command resumes from there")
    return 128 + outcome.signal if outcome.signal else 0
