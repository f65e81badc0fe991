"""loopt prove THEOREM"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import torch
import tyro

from loopt.commands.parsing import choose, parse_options
from loopt.errors import InputError
from loopt.files import explain_os_errors
from loopt.report.attention_figure import draw_attention
from loopt.report.figures import require_matplotlib
from loopt.report.growth_figure import draw_growth
from loopt.report.proofs import comparison_table, proof_record, proof_report, summary, trace_text
from loopt.report.screen import printable, screen
from loopt.report.trace_figure import draw_trace
from loopt.runs import Run
from loopt.tasks import Task
from loopt.tasks.phop import PHop
from loopt.theory import (
    chain_of_thought_proof,
    group_composition_proof,
    lemmas_proof,
    phop,
    phop_proof,
    simulation_proof,
)
from loopt.theory.controls import Control, Damage, control
from loopt.theory.formal import FormalTransformer
from loopt.theory.growth import panels
from loopt.theory.learned import compare
from loopt.theory.proof import Proof
from loopt.theory.saved import WEIGHTS, config_of_run, load, refuse_to_replace, save, save_as_run

USAGE = """\
usage: loopt prove group-composition [--group S5] [--n 64] [options]
       loopt prove simulation [--run RUN] [options]
       loopt prove phop [--p 16] [--n 256] [--alphabet 4] [--compare RUN] [options]
       loopt prove cot [--bits 6] [--group S5] [--run RUN --n N --m M] [options]
       loopt prove lemmas [--s 3]
       loopt prove all [options]

Build the weights that a theorem of the paper promises and check them: over all cases that decide every input, where it
says so, and by running the model that trains on sampled inputs. Claimed and actual sizes, what was checked for which
inputs, exact or not. The exit code is 1 if anything is not exact.

  group-composition  Theorem 5.1: one layer looped log n times composes n elements of any finite group
  simulation         Theorem 5.2: one layer looped L times computes what L layers do, few of them distinct
  phop               Corollary 5.3: one layer looped log p times solves p-hop induction
  cot                Theorem 5.4: a looped transformer generates what another one does by chain of thought
  lemmas             the lemmas of the appendix, on every input of a small size
  all                each of them in turn

--show prints what every position holds after each loop, and draws it, and with all how sizes grow; --save DIR saves the
weights; --json prints JSON.
--loops -1 and --break NAME damage what was built, to see the checks say NO. For example:

  loopt prove group-composition --group S3 --n 8 --show
  loopt prove group-composition --group S3 --n 8 --break product
  loopt prove all --save weights
"""


@dataclass(frozen=True)
class Options:
    seed: int = 0
    """Seed of the inputs and of random transformers."""
    show: bool = False
    """Print what every position holds after each loop, and draw it: PNG files in the directory of --save, or here."""
    save: Path | None = None
    """Directory for the weights, with a subdirectory for each model: config.json and weights.safetensors, which
    loopt.theory.saved.load reads, and run, for loopt eval, thoughts and train, where the model solves a task."""
    json: bool = False
    """Print one JSON object per theorem in place of tables."""

    def check(self) -> None:
        """Raises an InputError where a value is not allowed; while parsing, it would be shown as the parser's own."""


@dataclass(frozen=True)
class TheoremOptions(Options):
    loops: int = 0
    """Added to the number of loops of what was built: with -1 the checks have to say NO."""
    break_: Annotated[str | None, tyro.conf.arg(name="break")] = None
    """What to damage before it is checked, to see the checks say NO; another name lists those that there are."""

    def control(self, breaks: Mapping[str, Damage]) -> Control:
        return control(breaks, self.loops, self.break_)


@dataclass(frozen=True)
class GroupOptions(TheoremOptions):
    """Theorem 5.1: compose n elements of a group by looping one layer ⌈log2 n⌉ times. For example:

    loopt prove group-composition --group A5 --n 31 --show
    """

    group: str = "S5"
    """Z7, S5, A5, D4, products such as S3xZ2, or a file with a table such as table.json."""
    n: int = 64
    """How many elements a word has."""
    inputs: int = 16
    """How many random words to run, besides the check of all cases."""

    def check(self) -> None:
        self.control(group_composition_proof.BREAKS)
        group_composition_proof.check(self.group, self.n, self.inputs)


@dataclass(frozen=True)
class SimulationOptions(TheoremOptions):
    """Theorem 5.2: loop one layer in place of many layers, few of them distinct. For example:

    loopt prove simulation --seed 1

    loopt prove simulation --run weights/cot/addition-6-chain
    """

    run: Path | None = None
    """A transformer of your own in place of random ones: a run, or a directory that --save wrote. It has to be of the
    paper's kind, without norms and with learned positions."""

    def check(self) -> None:
        self.control(simulation_proof.BREAKS)


@dataclass(frozen=True)
class PHopOptions(TheoremOptions):
    """Corollary 5.3: solve p-hop by looping one layer about log2 p times. For example:

    loopt prove phop --p 8 --show

    loopt prove phop --compare runs/phop-cpu
    """

    p: int = 16
    """How many hops."""
    n: int = 256
    """How many letters a sequence has."""
    inputs: int = 40
    """How many random sequences to run, besides the check of all cases."""
    alphabet: int = phop.ALPHABET
    """How many letters there are."""
    compare: Path | None = None
    """Directory of a trained p-hop run, to compare with the built model instead of running the proof: how often the
    answer after each loop is right for 1, 2, 4, … hops, with the p and n of the run."""

    def check(self) -> None:
        self.control(phop_proof.BREAKS)
        if self.compare is None:
            phop_proof.check(self.p, self.n, self.inputs, self.alphabet)
            return
        given = [one.name for one in fields(self) if getattr(self, one.name) != one.default]
        others = [f"--{name.rstrip('_')}" for name in given if name not in ("compare", "seed")]
        if others:
            raise InputError(f"--compare and {', '.join(others)}: allowed beside --compare is --seed")


@dataclass(frozen=True)
class ChainOfThoughtOptions(TheoremOptions):
    """Theorem 5.4: loop a transformer to generate what another one does by chain of thought. For example:

    loopt prove cot --bits 4 --show

    loopt prove cot --run weights/cot/addition-6-chain --n 14 --m 6
    """

    bits: int = 6
    """All pairs of numbers of up to this many bits are added by chain of thought."""
    group: str = "S5"
    """The group whose elements are composed one by one, by chain of thought."""
    run: Path | None = None
    """A transformer θ of your own in place of the examples: a run, or a directory that --save wrote."""
    n: int = 4
    """How many tokens the inputs of --run have."""
    m: int = 4
    """How many tokens it generates."""

    def check(self) -> None:
        self.control(chain_of_thought_proof.BREAKS)
        chain_of_thought_proof.check(self.bits, self.group)


@dataclass(frozen=True)
class LemmaOptions(Options):
    """The lemmas of the appendix, on every input of a small size. For example:

    loopt prove lemmas --s 2
    """

    s: int = 3
    """The precision, of F_s."""

    def check(self) -> None:
        lemmas_proof.check(self.s)


@dataclass(frozen=True)
class AllOptions(Options):
    """Every theorem, with the default settings of its own command. For example:

    loopt prove all --save weights
    """


THEOREMS: dict[str, type[Options]] = {
    "group-composition": GroupOptions,
    "simulation": SimulationOptions,
    "phop": PHopOptions,
    "cot": ChainOfThoughtOptions,
    "lemmas": LemmaOptions,
}


def main(arguments: list[str]) -> int:
    chosen = choose(arguments, USAGE, "theorem", [*THEOREMS, "all"])
    if chosen is None:
        return 0
    name, rest = chosen
    options = parse_options(THEOREMS.get(name, AllOptions), rest, f"loopt prove {name}")
    options.check()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # such small products take longer on several threads
    try:
        return _run(name, options)
    finally:
        torch.set_num_threads(threads)


def _run(name: str, options: Options) -> int:
    if isinstance(options, PHopOptions) and options.compare is not None:
        return _compare(options.compare, options.seed)
    _prepare(options)
    wanted = THEOREMS if name == "all" else [name]
    proofs, seconds = {}, {}
    for one in wanted:
        settings = options if name == one else THEOREMS[one](options.seed, options.show, options.save, options.json)
        started = time.perf_counter()
        proof = _prove(settings)
        seconds[one] = time.perf_counter() - started
        _report(one, proof, options)
        proofs[one] = replace(proof, models={})  # their weights would add up
        del proof
    if name == "all" and options.show:
        svg, png = draw_growth(panels(), options.save or Path(), "sizes")
        if not options.json:
            print(f"How sizes grow: drawn in {printable(svg)} and {printable(png.name)}\n")
    if name == "all" and not options.json:
        screen().print(summary(proofs, seconds))
    return 0 if all(proof.exact for proof in proofs.values()) else 1


def _prepare(options: Options) -> None:
    """Raises an InputError before the work where saving or drawing would fail after it."""
    if options.show:
        require_matplotlib()
    if options.save is not None:
        with explain_os_errors(f"write to save={options.save}"):
            options.save.mkdir(parents=True, exist_ok=True)
            probe = options.save / ".probe"
            probe.touch()
            probe.unlink()


def _prove(options: Options) -> Proof:
    seed, show = options.seed, options.show
    match options:
        case GroupOptions(group=group, n=n, inputs=inputs):
            return group_composition_proof.prove(
                group, n, inputs, seed, show, options.control(group_composition_proof.BREAKS)
            )
        case PHopOptions(p=p, n=n, inputs=inputs, alphabet=alphabet):
            return phop_proof.prove(p, n, inputs, seed, show, options.control(phop_proof.BREAKS), alphabet)
        case SimulationOptions(run=run):
            own = None if run is None else _own_transformer(run)
            task = None if run is None else _own_task(run)
            change = options.control(simulation_proof.BREAKS)
            return simulation_proof.prove(seed=seed, show=show, control=change, own=own, task=task)
        case ChainOfThoughtOptions(bits=bits, group=group, run=run, n=n, m=m):
            change = options.control(chain_of_thought_proof.BREAKS)
            if run is not None:
                return chain_of_thought_proof.prove_own(_own_transformer(run), n, m, seed, show, change)
            return chain_of_thought_proof.prove(bits, seed, show, change, group)
        case LemmaOptions(s=s):
            return lemmas_proof.prove(s)
    raise TypeError(options)


def _own_transformer(directory: Path) -> FormalTransformer:
    """Returns the weights of a run's best checkpoint, or of a model that --save wrote."""
    saved = (directory / WEIGHTS).exists()
    model = load(directory) if saved else Run.load(directory).load_model("best")
    for name, weights in model.state_dict().items():
        if not bool(weights.isfinite().all()):
            raise InputError(f"run={directory}: {name} holds what is not a finite number")
    return FormalTransformer.of(model)


def _own_task(directory: Path) -> Task | None:
    """Returns the task of a run, or None for what has none: a model that --save wrote, or one of text."""
    source = None if (directory / WEIGHTS).exists() else Run.load(directory).config.source
    return source if isinstance(source, Task) else None


def _report(name: str, proof: Proof, options: Options) -> None:
    console = screen()
    if options.json:
        print(json.dumps(proof_record(name, proof), ensure_ascii=False))
    else:
        console.print(proof_report(proof))
    for i, trace in enumerate(proof.traces, start=1):
        svg, png = draw_trace(trace, options.save or Path(), f"{name}-{i}")
        if not options.json:
            print(trace_text(trace, console.width))
            print(f"Drawn in {printable(svg)} and {printable(png.name)}\n")
    for i, maps in enumerate(proof.maps, start=1):
        svg, png = draw_attention(maps, options.save or Path(), f"{name}-attention-{i}")
        if not options.json:
            print(f"{maps.title}: drawn in {printable(svg)} and {printable(png.name)}\n")
    if options.save is not None and proof.exact:
        directories = {one: options.save / name / re.sub(r"[^\w.]+", "-", one) for one in proof.models}
        for model_name, directory in directories.items():
            refuse_to_replace(proof.models[model_name], directory)  # before any of them is written
        for model_name, model in proof.models.items():
            directory = directories[model_name]
            save(model, directory)
            if not options.json:
                print(f"Saved {printable(directory)}")
            if model_name in proof.tasks:
                save_as_run(model, config_of_run(model, proof.tasks[model_name]), directory / "run")
                if not options.json:
                    print(f"and as a run for loopt eval, thoughts and train: {printable(directory / 'run')}")


def _compare(directory: Path, seed: int) -> int:
    run = Run.load(directory)
    task = run.config.source
    if not isinstance(task, PHop):
        raise InputError(f"compare={directory}: a run on {task.name}; allowed is one on phop")
    comparison = compare(run.load_model("best"), task, seed=seed)
    screen().print(comparison_table(comparison, printable(directory)))
    return 0 if comparison.built[-1].accuracies[-1] == 1.0 else 1
