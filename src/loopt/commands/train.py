"""loopt train PRESET"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from loopt.commands.parsing import choose, first_line, parse_options
from loopt.errors import InputError
from loopt.runs import TrainConfig, read_config
from loopt.text.index import INDEX, UNFINISHED, Index
from loopt.text.prepare import Settings, prepare
from loopt.text.sources import Corpus
from loopt.text.tokenizer import train_tokenizer
from loopt.training import Outcome, Session, presets, train
from loopt.training.parallel import Ranks
from loopt.training.trainer import resolve

WORDS, VALIDATION = 2048, 0.1
"""For text that comes as files: a small vocabulary, and a share held out that also few documents can give."""

USAGE = """\
usage: loopt train PRESET [options]
       loopt train --from RUN/config.json [options]
       loopt train --from results/NAME/SCALE/RUN.json [options]

Train a model. The same command on the same --run goes on where it was stopped or killed.

{presets}

`loopt train PRESET --help` lists every setting; for example:

  loopt train phop-cpu --model.plan 2x2 --optim.lr 3e-3 --run runs/two-by-two --time-limit 60
  loopt train lm-cpu --data examples/persuasion
  torchrun --nproc-per-node 8 -m -- loopt train lm-1b --model.plan 4x6 --data data/pile --parallel fsdp

A language model's --data is a directory that `loopt data prepare` made. Files of text will do too: they are prepared
first, with a tokenizer of {words} words trained on them.
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
            raise InputError("--from: which config? Give the path of a run's config.json, or of a result file")
        source, rest = Path(arguments[1]), arguments[2:]
        run = source.parent if source.name == "config.json" else Path("runs") / source.stem
        prog, default = f"loopt train --from {source}", Options(run, read_config(source), Session())
    else:
        lines = "\n".join(f"  {name:10} {first_line(preset)}" for name, preset in presets.PRESETS.items())
        usage = USAGE.format(presets=lines, words=WORDS)
        chosen = choose(arguments, usage, "preset", list(presets.PRESETS))
        if chosen is None:
            return 0
        name, rest = chosen
        prog = f"loopt train {name}"
        default = Options(Path("runs") / name, presets.PRESETS[name](), Session())
    changes = "--model.plan 2x2 --optim.lr 3e-3 --run runs/two-by-two --time-limit 60"
    if default.config.task is None:
        changes = "--data data/mine --model.plan 4x6 --batch-size 64 --run runs/four-by-six"
    example = f"{prog} {changes}"
    description = f"Train a model, or go on with a run that was stopped. For example:\n\n{example}"
    options = parse_options(Options, rest, prog, default=default, description=description)
    config = _with_data(options.config, options.run)
    first = Ranks.told().first  # it speaks for all
    if config.task is None and first:
        model = resolve(config, options.run).model
        print(f"{options.run}: plan {model.plan}, {model.parameters():,} parameters", file=sys.stderr)
    outcome = train(config, options.run, options.session)
    if not first:
        return 128 + outcome.signal if outcome.signal else 0
    if not outcome.finished:
        return report_stop(outcome, options.run)
    print(f"{options.run}: {outcome.reason}, step {outcome.step}; {_figure(outcome.result)}")
    return 0


def _figure(result: dict[str, Any]) -> str:
    if "perplexity" in result:
        return f"perplexity {result['perplexity']:.2f} on {result['test_tokens']:,} tokens of held-out text"
    return f"accuracy {result['accuracy']:.2%} on {result['test_examples']} test examples"


def _with_data(config: TrainConfig, run: Path) -> TrainConfig:
    """The config with its text prepared: as it is, or from files of text, beside the run."""
    if config.task is not None:
        return config
    if config.data is None:
        raise InputError("data: which text? Give a directory that `loopt data prepare` made, or files of text")
    source, prepared = config.data, run.parent / f"{run.name}-data"
    if (Path(source) / INDEX).exists() or (Path(source) / UNFINISHED).exists():
        return config
    corpus = Corpus.find([source], "text")
    if (prepared / INDEX).exists():
        _refuse_other_text(source, corpus, prepared)
    else:
        if Ranks.told().together:
            raise InputError(f"data={source}: with several ranks, prepare it first with `loopt data prepare`")
        print(f"preparing {source} in {prepared}", file=sys.stderr)
        tokenizer = train_tokenizer((text.text for text, _ in corpus.documents()), WORDS)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "tokenizer.json"
            file.write_text(tokenizer.text, encoding="utf-8")
            prepare(Settings((source,), str(file), validation=VALIDATION), prepared, workers=1)
    return replace(config, data=str(prepared))


def _refuse_other_text(source: str, corpus: Corpus, prepared: Path) -> None:
    index = Index.read(prepared / INDEX)
    if index.place != corpus.end or index.sources_sha256 != corpus.identity(corpus.end):
        raise InputError(
            f"data={source}: {prepared} was made from {' '.join(index.sources)}, which is not this text or has changed "
            f"since; choose another --run, or go on with --data {prepared}"
        )


def report_stop(outcome: Outcome, where: Path) -> int:
    print(f"{where}: {outcome.reason}, saved at step {outcome.step}; the same command goes on from there")
    return 128 + outcome.signal if outcome.signal else 0
