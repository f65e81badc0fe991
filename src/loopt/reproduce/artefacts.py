"""Every table, figure and theorem of the paper, with the command that makes it and how far its results are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from loopt.report.document import Block, Code, Document, Grid, Paragraph, Section, grid_of
from loopt.reproduce.catalogue import EXPERIMENTS, LANGUAGE
from loopt.reproduce.experiment import Experiment, Scale, jobs_of
from loopt.reproduce.rendering import build_sheets

SCALES: tuple[Scale, ...] = get_args(Scale)


@dataclass(frozen=True)
class Artefact:
    """One thing of the paper that can be made again."""

    name: str
    command: str
    experiments: tuple[str, ...] = ()
    """The experiments whose results are behind it."""
    plan: str = ""
    """Of which only rows with this plan."""
    recipe: str = ""
    """Of which only rows with this recipe."""
    theorem: str = ""
    """What `loopt prove` calls it."""


ARTEFACTS = (
    Artefact("Table 1, left: addition", "loopt reproduce addition", ("addition",)),
    Artefact("Table 1, right: p-hop", "loopt reproduce phop", ("phop", "phop-uniform")),
    Artefact("Table 2: i-GSM", "loopt reproduce igsm", ("igsm", "igsm-any", "igsm-even")),
    Artefact("Table 3: language models", "loopt reproduce language", ("language",)),
    Artefact("Table 4: the regularizer", "loopt reproduce regularization", ("regularization",)),
    Artefact("Tables 5 to 8: the 19 tasks", "loopt eval RUN --suite paper", ("language",)),
    Artefact("Figures 2 and 7: isoplots", "loopt analyze isoplot RUN ...", ("language",)),
    Artefact("Figure 3: scaling with depth", "loopt reproduce depth-scaling", ("depth-scaling",)),
    Artefact("Figure 4: latent thoughts", "loopt thoughts --page"),
    Artefact("Figures 5 and 6: cosines of layers", "loopt analyze similarity RUN ...", ("regularization",)),
    Artefact("Middle looping", 'loopt reproduce language --rows "4x(1,4,1)"', ("language",), plan="4x(1,4,1)"),
    Artefact("Theorem 5.1: groups", "loopt prove group-composition", theorem="group-composition"),
    Artefact("Theorem 5.2: simulation", "loopt prove simulation", theorem="simulation"),
    Artefact("Corollary 5.3: p-hop", "loopt prove phop", theorem="phop"),
    Artefact("Theorem 5.4: chain of thought", "loopt prove cot", theorem="cot"),
    Artefact("Finite precision", "loopt prove all", theorem="all"),
    Artefact("Loops at inference", "loopt reproduce more-loops", ("loops", "more-loops")),
    Artefact("Gradual stacking (MidAS)", "loopt reproduce language-beyond", ("language-beyond",), recipe="midas"),
)


def state_of(artefact: Artefact, results: Path, proofs: Mapping[str, str]) -> str:
    """Returns how far an artefact is: by its result files, or by what ``proofs`` says of its theorem."""
    if artefact.theorem:
        return proofs.get(artefact.theorem, "checked whenever the command runs")
    if not artefact.experiments:
        return "an illustration, made by the command"
    every = EXPERIMENTS | LANGUAGE
    found = []
    for name in artefact.experiments:
        for scale in SCALES:
            measured, rows = _measured(every[name], scale, artefact, results)
            if measured:
                of = f"{name}, " if len(artefact.experiments) > 1 else ""
                found.append(f"{of}{scale}: {measured} of {rows} runs")
    return "; ".join(found) or "not measured yet"


def _measured(experiment: Experiment, scale: Scale, artefact: Artefact, results: Path) -> tuple[int, int]:
    """Returns how many runs of the first seed have a result, and how many there are."""
    jobs = [
        job
        for job in jobs_of(experiment, scale, 1)
        if artefact.plan in ("", str(job.row.plan)) and artefact.recipe in ("", job.row.recipe)
    ]
    return sum(job.result_path(results).exists() for job in jobs), len(jobs)


def artefacts_document(results: Path, proofs: Mapping[str, str]) -> Document:
    """Returns the page of all artefacts: their state, and every table that has results."""
    rows = [[one.name, one.command, state_of(one, results, proofs)] for one in ARTEFACTS]
    sections = []
    for experiment in (EXPERIMENTS | LANGUAGE).values():
        for scale in reversed(SCALES):
            if any((results / experiment.folder / scale).glob("*-seed*.json")):
                blocks: list[Block] = [grid_of(sheet) for sheet in build_sheets(experiment, scale, results).values()]
                command = Code(f"loopt reproduce {experiment.name} --scale {scale}")
                sections.append(Section(f"{experiment.title}, scale {scale}", [*blocks, command]))
    return Document(
        title="All artefacts and their state",
        blocks=[
            Paragraph(
                "Every table, figure and theorem of the paper, with the command that makes it, and how many of its "
                f"runs have a result file in {results}. Below are all tables that these files give."
            ),
            Grid(["artefact", "command", "state"], rows, of_text=True),
        ],
        sections=sections,
    )
