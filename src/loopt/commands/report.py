"""loopt report EXPERIMENT | FOLDER | --all"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from loopt.commands.parsing import parse_options, path_named
from loopt.errors import InputError
from loopt.files import explain_os_errors, write_atomically
from loopt.report.document import Document, to_html, to_markdown
from loopt.report.figures import require_matplotlib
from loopt.report.screen import printable, screen
from loopt.reproduce.artefacts import artefacts_document
from loopt.reproduce.catalogue import EXPERIMENTS, LANGUAGE
from loopt.reproduce.experiment import Scale
from loopt.reproduce.report import experiment_document, runs_document
from loopt.reproduce.sweep import Folders
from loopt.theory import chain_of_thought_proof, group_composition_proof, phop_proof, simulation_proof
from loopt.theory.proof import Proof


@dataclass(frozen=True)
class Options:
    """Write a report of an experiment, or of a folder of runs: configuration, curves, tables beside the paper's,
    figures, environment and the commands that made it. For example:

    loopt report phop --scale short --results results

    loopt report runs --out runs.md

    loopt report --all --results results
    """

    what: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="WHAT")] = ""
    """An experiment, as loopt reproduce names it, or a folder of runs."""
    all: bool = False
    """All artefacts of the paper and their state instead, with every table that has results."""
    prove: bool = False
    """With --all, also build and check the theorems, at small sizes."""
    scale: Scale = "cpu"
    """Which runs of an experiment: cpu, short or paper."""
    results: Path = Folders.results
    """Where the result files of experiments are; the project's own are in results."""
    out: Path | None = None
    """The file: NAME.html, one page that needs nothing else, or NAME.md, Markdown with its figures in NAME-figures;
    runs/reports/WHAT.html unless given."""


def main(arguments: list[str]) -> int:
    options = parse_options(Options, arguments, "loopt report")
    if bool(options.what) == options.all:
        raise InputError("report: of what? Allowed is an experiment, a folder of runs, or --all")
    name = "all" if options.all else Path(options.what).resolve().name
    out = options.out or Path("runs/reports") / f"{name}.html"
    if out.suffix not in (".html", ".md"):
        raise InputError(f"out={out}: allowed is a name that ends in .html or .md")
    figures = out.parent / f"{out.stem}-figures"
    document = _document(options, figures)
    with explain_os_errors(f"write {out}"):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, to_html(document) if out.suffix == ".html" else to_markdown(document, out))
    screen().print(f"Wrote {printable(out)}")
    return 0


def _document(options: Options, figures: Path) -> Document:
    if options.all:
        return artefacts_document(options.results, _proofs() if options.prove else {})
    require_matplotlib()
    every = EXPERIMENTS | LANGUAGE
    with explain_os_errors(f"write {figures}"):
        if options.what in every:
            return experiment_document(every[options.what], options.scale, options.results, figures)
        folder = path_named(options.what)
        if not folder.is_dir():
            raise InputError(
                f"report: {options.what}: no such experiment or folder; experiments are {', '.join(every)}"
            )
        return runs_document(folder, figures)


def _proofs() -> dict[str, str]:
    """Returns what came of each theorem at a small size."""
    proofs = {
        "group-composition": group_composition_proof.prove("S3", 8, 8),
        "simulation": simulation_proof.prove(),
        "phop": phop_proof.prove(4, 16, 8),
        "cot": chain_of_thought_proof.prove(3),
    }
    return {name: _outcome([proof]) for name, proof in proofs.items()} | {"all": _outcome(list(proofs.values()))}


def _outcome(proofs: list[Proof]) -> str:
    wrong = sum(not check.exact for proof in proofs for check in proof.checks)
    return f"{wrong} checks not exact" if wrong else "built, and all checks are exact at small sizes"
