"""Reports: all there is to know of an experiment, or of a folder of runs, from their files alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loopt.errors import InputError
from loopt.files import read_json
from loopt.report.document import Block, Code, Document, Grid, Paragraph, Picture, Section, grid_of
from loopt.report.training_curves import draw_training_curves
from loopt.reproduce.experiment import Experiment, Job, Scale
from loopt.reproduce.language_measurement import LanguageMeasurement
from loopt.reproduce.rendering import build_sheets, write_experiment
from loopt.runs import Run, codec
from loopt.runs.folder import Unreadable, runs_in, summary_of

ENVIRONMENT = ("hardware", "torch", "python", "loopt")
MOST_RUNS = 200
CURVES = (("validation_accuracy", 100.0, "validation accuracy, %"), ("validation_loss", 1.0, "validation loss, nats"))
"""What may be drawn of a run's metrics: the field, a factor, and what it is called."""

Curves = dict[str, list[tuple[float, float]]]


def experiment_document(experiment: Experiment, scale: Scale, results: Path, figures: Path) -> Document:
    """Returns the report of an experiment from its result files; its figures are drawn into a folder."""
    folder = results / experiment.folder / scale
    files = {path.stem: read_json(path) for path in sorted(folder.glob("*-seed*.json"))}
    if not files:
        raise InputError(
            f"{folder}: has no result files; `loopt reproduce {experiment.name} --scale {scale}` makes them"
        )
    tables: list[Block] = []
    for sheet in build_sheets(experiment, scale, results).values():
        tables += [Paragraph(sheet.title), grid_of(sheet)]
    drawn = [path for path in write_experiment(experiment, scale, results, figures) if path.suffix == ".svg"]
    if not isinstance(experiment.measurement, LanguageMeasurement):
        drawn += _training_drawn(experiment, scale, results, figures)
    configs = {name: file["config"] for name, file in files.items()}
    facts = {name: file["result"] for name, file in files.items()}
    return Document(
        title=f"{experiment.title}, scale {scale}",
        blocks=[
            Paragraph(f"{len(files)} runs, from {folder}. It was made, and is made again, with:"),
            Code(
                f"loopt reproduce {experiment.name} --scale {scale}\n"
                f"loopt report {experiment.name} --scale {scale} --results {results}"
            ),
        ],
        sections=[
            Section("Ours beside the paper's", tables),
            Section(
                "Figures", [Picture(path, f"{path.stem.replace('-', ' ')} of {experiment.title}") for path in drawn]
            ),
            Section("Configuration", _configuration(configs)),
            Section("Environment", [_environment(facts)]),
        ],
    )


def _training_drawn(experiment: Experiment, scale: Scale, results: Path, figures: Path) -> list[Path]:
    """Returns a figure for each variant, of the first seed of every row."""
    drawn = []
    for variant in experiment.variants:
        curves: Curves = {}
        for row in experiment.rows:
            found = Job(experiment, scale, row, variant, seed=0).read_result(results)
            if found is not None:
                curves[row.label] = [(step, 100 * value) for step, value, _ in found["curve"]]
        drawn += _drawn(curves, "validation accuracy, %", figures, f"training-{variant}" if variant else "training")
    return drawn


def runs_document(folder: Path, figures: Path) -> Document:
    """Returns the report of the runs in a folder; its figures are drawn into another."""
    found = list(runs_in(folder))
    runs = {str(run.directory.relative_to(folder)): run for run in found if isinstance(run, Run)}
    unreadable = [run for run in found if isinstance(run, Unreadable)]
    if unreadable and not runs:
        raise InputError(unreadable[0].why)
    if not 1 <= len(runs) <= MOST_RUNS:
        raise InputError(f"folder={folder}: has {len(runs)} runs; allowed are 1 to {MOST_RUNS}")
    runs = {name if name != "." else folder.resolve().name: run for name, run in runs.items()}
    rows, facts = [], {}
    for name, run in runs.items():
        summary, result = summary_of(run), run.read_result() or {}
        facts[name] = result
        accuracy = result.get("accuracy")
        test = f"{accuracy:.2%}" if isinstance(accuracy, float) else ""
        parameters = f"{result['parameters']:,}" if "parameters" in result else ""
        seconds = f"{result['seconds']:.0f}" if "seconds" in result else ""
        plan = run.config.model.plan.typography
        rows.append([name, plan, summary.state, str(summary.step), summary.best, test, parameters, seconds])
    header = ["run", "plan", "state", "steps", "best on validation", "accuracy, test", "parameters", "seconds"]
    commands = [f"loopt train --from {run.directory / 'config.json'} --run {run.directory}" for run in runs.values()]
    drawn = [
        Picture(path, f"{path.stem.replace('-', ' ')} of the runs in {folder}")
        for path in _metrics_drawn(runs, figures)
    ]
    return Document(
        title=f"Runs in {folder}",
        blocks=[Grid(header, rows), *(Paragraph(f"Not in this report: {run.why}") for run in unreadable)],
        sections=[
            *([Section("While they trained", drawn)] if drawn else []),
            Section("Configuration", _configuration({name: codec.to_json(run.config) for name, run in runs.items()})),
            Section("Environment", [_environment(facts)]),
            Section("Commands", [Code("\n".join([*commands, f"loopt report {folder}"]))]),
        ],
    )


def _metrics_drawn(runs: Mapping[str, Run], figures: Path) -> list[Path]:
    metrics = {name: run.read_metrics() for name, run in runs.items()}
    drawn = []
    for field, factor, quality in CURVES:
        curves = {
            name: [(line["step"], factor * line[field]) for line in lines if line.get(field) is not None]
            for name, lines in metrics.items()
        }
        drawn += _drawn(curves, quality, figures, field.replace("_", "-"))
    return drawn


def _drawn(curves: Curves, quality: str, figures: Path, name: str) -> list[Path]:
    """Returns the SVG file of the curves that have points, or nothing where none has."""
    curves = {run: points for run, points in curves.items() if points}
    return draw_training_curves(curves, quality, figures, name)[:1] if curves else []


def _configuration(configs: Mapping[str, Any]) -> list[Block]:
    """Returns what all runs have in common, and what tells them apart."""
    flat = {name: _flat(config) for name, config in configs.items()}
    fields = list(dict.fromkeys(field for config in flat.values() for field in config))
    values = {field: [config.get(field, "") for config in flat.values()] for field in fields}
    same = [[field, found[0]] for field, found in values.items() if len(set(found)) == 1 and found[0]]
    apart = [field for field, found in values.items() if len(set(found)) > 1]
    blocks: list[Block] = []
    if apart:
        rows = [[name, *(config.get(field, "") for field in apart)] for name, config in flat.items()]
        blocks += [Paragraph("What tells the runs apart:"), Grid(["run", *apart], rows, of_text=True)]
    return [*blocks, Paragraph("What they have in common:"), Grid(["field", "value"], same, of_text=True)]


def _flat(config: Any, prefix: str = "") -> dict[str, str]:
    """Returns nested settings as text by dotted names, those that are not set left out."""
    if isinstance(config, Mapping):
        parts = (_flat(value, f"{prefix}{name}.") for name, value in config.items())
        return {name: value for part in parts for name, value in part.items()}
    written = (
        " ".join(map(str, config)) if isinstance(config, Sequence) and not isinstance(config, str) else str(config)
    )
    return {} if config is None else {prefix.rstrip("."): written}


def _environment(facts: Mapping[str, Mapping[str, Any]]) -> Grid:
    """Returns on what the finished runs trained, and how many of them."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for result in facts.values():
        if result:
            kind = tuple(str(result.get(field, "")) for field in ENVIRONMENT)
            kinds.setdefault(kind, []).append(str(result.get("finished", ""))[:10])
    rows = [
        [str(len(days)), *kind, min(days) if min(days) == max(days) else f"{min(days)} to {max(days)}"]
        for kind, days in kinds.items()
    ]
    return Grid(["runs", *ENVIRONMENT, "finished"], rows or [["0"] + [""] * 5], of_text=True)
