"""loopt prove THEOREM"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from loopt.commands.parsing import choose, parse_options
from loopt.errors import InputError
from loopt.files import explain_os_errors
from loopt.report.figures import require_matplotlib
from loopt.report.proofs import comparison_table, proof_report, summary, trace_text
from loopt.report.screen import printable, screen
from loopt.report.trace_figure import draw_trace
from loopt.runs import Run
from loopt.tasks.phop import PHop
from loopt.theory import chain_of_thought_proof, group_composition, phop, simulation
from loopt.theory.learned import compare
from loopt.theory.proof import Proof
from loopt.theory.saved import save

USAGE = """\
usage: loopt prove group-composition [--group S5] [--n 64] [options]
       loopt prove simulation [options]
       loopt prove phop [--p 16] [--n 256] [--compare RUN] [options]
       loopt prove cot [--bits 6] [options]
       loopt prove all [options]

Build the weights that a theorem of the paper promises, run them in the model that trains, and compare the results with
the algorithm: claimed and actual sizes, inputs tried, exact or not. The exit code is 1 if anything is not exact.

  group-composition  Theorem 5.1: one layer looped log n times composes n elements of any finite group
  simulation         Theorem 5.2: one layer looped L times computes what L layers do, few of them distinct
  phop               Corollary 5.3: one layer looped log p times solves p-hop induction
  cot                Theorem 5.4: a looped transformer generates what another one does by chain of thought
  all                each of them in turn

--show prints what every position holds after each loop, and draws it; --save DIR saves the weights. For example:

  loopt prove group-composition --group S3 --n 8 --show
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
    loopt.theory.saved.load reads."""

    def check(self) -> None:
        """Raises an InputError where a value is not allowed; while parsing, it would be shown as the parser's own."""


@dataclass(frozen=True)
class GroupOptions(Options):
    """Theorem 5.1: compose n elements of a group by looping one layer ⌈log2 n⌉ times. For example:

    loopt prove group-composition --group A5 --n 31 --show
    """

    group: str = "S5"
    """Z7, S5, A5, D4, products such as S3xZ2, or a file with a table such as table.json."""
    n: int = 64
    """How many elements a word has."""
    inputs: int = 64
    """How many random words to try."""

    def check(self) -> None:
        group_composition.check(self.group, self.n, self.inputs)


@dataclass(frozen=True)
class SimulationOptions(Options):
    """Theorem 5.2: loop one layer in place of many layers, few of them distinct. For example:

    loopt prove simulation --seed 1
    """


@dataclass(frozen=True)
class PHopOptions(Options):
    """Corollary 5.3: solve p-hop by looping one layer about log2 p times. For example:

    loopt prove phop --p 8 --show
    loopt prove phop --compare runs/phop-cpu
    """

    p: int = 16
    """How many hops."""
    n: int = 256
    """How many letters a sequence has."""
    inputs: int = 400
    """How many random sequences to try."""
    compare: Path | None = None
    """Directory of a trained p-hop run, to compare with the built model instead of running the proof: how often the
    answer after each loop is right for 1, 2, 4, … hops, with the p and n of the run."""

    def check(self) -> None:
        phop.check(self.p, self.n, self.inputs)


@dataclass(frozen=True)
class ChainOfThoughtOptions(Options):
    """Theorem 5.4: loop a transformer to generate what another one does by chain of thought. For example:

    loopt prove cot --bits 4 --show
    """

    bits: int = 6
    """All pairs of numbers of up to this many bits are added by chain of thought."""

    def check(self) -> None:
        chain_of_thought_proof.check(self.bits)


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
        settings = options if name == one else THEOREMS[one](options.seed, options.show, options.save)
        started = time.perf_counter()
        proofs[one] = _prove(settings)
        seconds[one] = time.perf_counter() - started
        _report(one, proofs[one], options)
    if name == "all":
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
            return group_composition.prove(group, n, inputs, seed=seed, show=show)
        case PHopOptions(p=p, n=n, inputs=inputs):
            return phop.prove(p, n, inputs, seed=seed, show=show)
        case SimulationOptions():
            return simulation.prove(seed=seed, show=show)
        case ChainOfThoughtOptions(bits=bits):
            return chain_of_thought_proof.prove(bits, seed=seed, show=show)
    raise TypeError(options)


def _report(name: str, proof: Proof, options: Options) -> None:
    console = screen()
    console.print(proof_report(proof))
    for i, trace in enumerate(proof.traces, start=1):
        svg, png = draw_trace(trace, options.save or Path(), f"{name}-{i}")
        print(trace_text(trace, console.width))
        print(f"Drawn in {printable(svg)} and {printable(png.name)}\n")
    if options.save is not None:
        for model_name, model in proof.models.items():
            directory = options.save / name / re.sub(r"[^\w.]+", "-", model_name)
            save(model, directory)
            print(f"Saved {printable(directory)}")


def _compare(directory: Path, seed: int) -> int:
    run = Run.load(directory)
    task = run.config.source
    if not isinstance(task, PHop):
        raise InputError(f"compare={directory}: a run on {task.name}; allowed is one on phop")
    comparison = compare(run.load_model("best"), task, seed=seed)
    screen().print(comparison_table(comparison, printable(directory)))
    return 0 if comparison.built[-1].accuracies[-1] == 1.0 else 1
