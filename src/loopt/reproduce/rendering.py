"""Every table and figure of an experiment, from its result files alone."""

from __future__ import annotations

from pathlib import Path

from loopt.files import explain_os_errors
from loopt.report import sheet as sheets
from loopt.report.by_difficulty import draw_by_difficulty
from loopt.report.by_loops import draw_by_loops
from loopt.report.sheet import Sheet
from loopt.report.sheet_figure import draw_sheet
from loopt.reproduce.experiment import Experiment, Scale
from loopt.reproduce.language_figures import draw_language_figures
from loopt.reproduce.language_measurement import LanguageMeasurement
from loopt.reproduce.language_table import build_language_sheets
from loopt.reproduce.table import build_sheet, by_difficulty, by_loops


def build_sheets(experiment: Experiment, scale: Scale, results: Path) -> dict[str, Sheet]:
    """Returns the experiment's tables by name; the main one is called "table"."""
    if isinstance(experiment.measurement, LanguageMeasurement):
        return build_language_sheets(experiment, scale, results)
    return {"table": build_sheet(experiment, scale, results)}


def write_experiment(experiment: Experiment, scale: Scale, results: Path, folder: Path) -> list[Path]:
    """Writes the tables as Markdown, as LaTeX and as figures, and the further figures that the results have numbers
    for; returns the files."""
    written: list[Path] = []
    for name, sheet in build_sheets(experiment, scale, results).items():
        with explain_os_errors(f"write {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            for ending, text in (("md", sheets.markdown(sheet)), ("tex", sheets.latex(sheet))):
                written.append(folder / f"{name}.{ending}")
                written[-1].write_text(text, encoding="utf-8")
        written += draw_sheet(sheet, folder, name)
    if isinstance(experiment.measurement, LanguageMeasurement):
        return written + draw_language_figures(experiment, scale, results, folder)
    if curves := by_loops(experiment, scale, results):
        written += draw_by_loops(curves, experiment.rows[0].plan.blocks[0].loops, folder)
    if graded := by_difficulty(experiment, scale, results):
        written += draw_by_difficulty(graded, folder)
    return written
