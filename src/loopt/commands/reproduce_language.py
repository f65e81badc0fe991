"""loopt reproduce language | regularization | depth-scaling"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from loopt.commands.sweeping import ExperimentOptions, chosen_jobs, run_sweep
from loopt.evaluation.mini_sets import mini_data_dir
from loopt.report import sheet as sheets
from loopt.report.figures import require_matplotlib
from loopt.report.screen import printable, screen
from loopt.reproduce.experiment import Experiment, Scale
from loopt.reproduce.language import given_text, language_experiments, prepare_command, prepared_text
from loopt.reproduce.language_measurement import LanguageMeasurement
from loopt.reproduce.language_settings import SETTINGS
from loopt.reproduce.rendering import build_sheets, write_experiment
from loopt.reproduce.sweep import Folders

ON_SCREEN = ("table", "likelihood")
"""The tables to print; the others, task by task, are in files."""


@dataclass(frozen=True)
class LanguageOptions(ExperimentOptions):
    """Which language models to train, on which text, and how."""

    data: str = ""
    """A directory that `loopt data prepare` made, or text, which is then prepared with variable assignment mixed in.
    At scale cpu, the novel in examples/ unless given."""
    data_dir: Path | None = None
    """Where the data of the 15 real tasks are, as `loopt eval --data-dir` takes them; without it there are the four
    primitives alone, at scale cpu also mini-sets that we invented."""


def describe_language(name: str) -> str:
    experiment = language_experiments()[name]
    return (
        f"{experiment.title}: train every row that is not finished yet on the same tokens in the same order, measure "
        "it, and show the tables. The same command resumes where it was stopped, rows that experiments share are "
        f"trained once. For example:\n\nloopt reproduce {name} --scale cpu\n\nText for scale short is prepared "
        f"with:\n\n{prepare_command('short')}\n\nand its rows are trained with:\n\n"
        f"loopt reproduce {name} --scale short --data data/language --data-dir data/evals "
        f"--rows {experiment.rows[0].name} --time-limit 500"
    )


def run_language(name: str, options: LanguageOptions) -> int:
    require_matplotlib()
    chosen_jobs(language_experiments()[name], options)  # what is wrong with these is told before text is prepared
    given_text(options.data, options.scale)
    if options.scale == "cpu":
        torch.set_num_threads(1)  # for tensors this small threads only wait for each other, on a busy machine for long
    invented = options.data_dir is None and options.scale == "cpu"
    data_dir = mini_data_dir() if invented else options.data_dir and options.data_dir.resolve()
    LanguageMeasurement(data_dir=data_dir).questions(SETTINGS[options.scale])  # so are missing data
    data = prepared_text(options.data, options.scale, options.folders.runs)
    experiment = language_experiments(data, data_dir, invented)[name]
    jobs = chosen_jobs(experiment, options)
    return run_sweep(jobs, options, lambda: _show(experiment, options.scale, options.folders))


def _show(experiment: Experiment, scale: Scale, folders: Folders) -> None:
    """Prints the tables, and writes all of them and the figures beside the results."""
    for name, sheet in build_sheets(experiment, scale, folders.results).items():
        if name in ON_SCREEN:
            screen().print(sheets.terminal(sheet))
    folder = folders.results / experiment.name / scale
    written = write_experiment(experiment, scale, folders.results, folder)
    print(f"Also as {', '.join(path.name for path in written)} in {printable(folder)}")
