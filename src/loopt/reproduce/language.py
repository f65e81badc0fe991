"""Tables 3 to 8 and Figures 2, 3 and 5 to 7: language models. Several experiments over one pool of rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from loopt.errors import InputError
from loopt.files import write_atomically
from loopt.plan import LoopPlan
from loopt.reproduce.experiment import Experiment, Row, Scale
from loopt.reproduce.language_measurement import LanguageMeasurement
from loopt.reproduce.language_paper import CLOSED_BOOK, HEADLINE, MATH, OPEN_BOOK, PAPER, PRIMITIVES
from loopt.reproduce.language_settings import SETTINGS
from loopt.runs import TrainConfig
from loopt.runs.config import RegularizerConfig, RegularizerKind
from loopt.text.corpus import Corpus
from loopt.text.index import INDEX, TOKENIZER
from loopt.text.prepare import Settings, available_cores, prepare
from loopt.text.progress import progress_bar
from loopt.text.tokenizer import train_tokenizer

FOLDER = "language"
"""Of all of them: rows that they share are trained once."""
EXAMPLE_TEXT = Path("examples/persuasion")
DEPTHS = (1, 2, 3, 6, 9, 12)
"""L of (4⊗L) and (4L⊗1) in Figure 3."""
ALONG_TRAINING = ("24x1", "4x1", "4x6", "12x1", "12x2", "8x1", "8x3", "24x1-k4-w10")
"""The rows of the isoplots, Figures 2 and 7."""

METRICS = (*HEADLINE, "validation_perplexity", "token_accuracy", *CLOSED_BOOK, *OPEN_BOOK, *MATH, *PRIMITIVES)


def _row(plan: str, block: int = 0, weight: float = 0.0, kind: RegularizerKind = "cosine", recipe: str = "") -> Row:
    row = Row(LoopPlan.parse(plan), {}, RegularizerConfig(block, weight, kind))
    return replace(row, paper=PAPER.get(row.name, {}), recipe=recipe)


def _experiment(name: str, title: str, rows: list[Row], data: str, data_dir: Path | None, invented: bool) -> Experiment:
    def configure(plan: LoopPlan, variant: str, scale: Scale) -> TrainConfig:
        return SETTINGS[scale].config(plan, variant, data)

    return Experiment(
        name=name,
        title=title,
        rows=tuple(rows),
        variants=("",),
        columns_of=lambda variant, scale: {metric: metric for metric in _all_metrics()},
        configure=configure,
        small={},
        measurement=LanguageMeasurement(ALONG_TRAINING, data_dir, invented),
        folder=FOLDER,
        comparable=("paper",),
    )


def _all_metrics() -> list[str]:
    of_text = ("perplexity", "validation_perplexity", "token_accuracy")
    tasks = [metric for metric in METRICS if metric not in of_text]
    by_likelihood = [f"{metric}/bits_per_byte" for metric in tasks]
    return [*METRICS, *by_likelihood, *(f"{name}/choice" for name in ("primitives", *PRIMITIVES))]


def language_experiments(data: str = "", data_dir: Path | None = None, invented: bool = False) -> dict[str, Experiment]:
    """Returns the experiments, which train on ``data``, a prepared directory, and are measured on the 15 tasks of
    ``data_dir``, where that is given."""
    plans = ("24x1", "4x1", "4x6", "12x1", "12x2", "4x(1,4,1)", "8x1", "8x3", "6x1", "6x4")
    regularized = [
        _row("24x1", 4, 10.0),
        _row("24x1", 6, 10.0),
        _row("24x1", 8, 10.0),
        _row("24x1", 12, 10.0),
        _row("24x1", 4, 1.0),
        _row("24x1", 4, 10.0, "l2"),
    ]
    series = [plan for loops in DEPTHS for plan in dict.fromkeys((f"{4 * loops}x1", f"4x{loops}"))]
    beyond = [_row("4x6", recipe="injection"), _row("4x6", recipe="residual"), _row("24x1", recipe="midas")]
    rates = [_row(plan, recipe=recipe) for plan in ("24x1", "4x6") for recipe in ("", "half rate", "double rate")]
    tables = (
        ("language", "Language models (Table 3)", [_row(plan) for plan in plans]),
        ("language-beyond", "Language models, beyond Table 3", [*map(_row, plans[:3]), *beyond]),
        ("language-rates", "Language models at three learning rates", rates),
        ("regularization", "Regularization (Table 4)", [_row("24x1"), *regularized]),
        ("depth-scaling", "Depth by loops and by layers (Figure 3)", [_row(plan) for plan in series]),
    )
    return {name: _experiment(name, title, rows, data, data_dir, invented) for name, title, rows in tables}


def prepared_text(data: str, scale: Scale, runs: Path) -> str:
    """Returns the prepared directory that all rows train on: the given one, or one made of the text that is given, with
    variable assignment mixed in; at scale cpu of the novel that comes with the project."""
    data = given_text(data, scale)
    if (Path(data) / INDEX).exists():
        return str(Path(data).resolve())  # a Ray worker may have another working directory
    setting, folder = SETTINGS[scale], runs / FOLDER / f"{scale}-text"
    tokenizer = folder.with_suffix(".tokenizer.json")
    if not tokenizer.exists():
        texts = (document.text for document, _ in Corpus.find([data], "text").documents())
        tokenizer.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(tokenizer, train_tokenizer(texts, setting.vocabulary).text)
    settings = Settings((data, *setting.mixture), str(tokenizer), validation=setting.held_out, test=setting.held_out)
    with progress_bar() as report:
        prepare(settings, folder, workers=1 if scale == "cpu" else available_cores(), report=report)
    return str(folder.resolve())


def given_text(data: str, scale: Scale) -> str:
    """Returns ``data``, or what stands for it where it is empty; raises an InputError where nothing does."""
    if data:
        return data
    if scale != "cpu":
        raise InputError(f"data: which text? Allowed is --data with what this prepares: {prepare_command(scale)}")
    if not EXAMPLE_TEXT.is_dir():
        raise InputError(
            f"data: {EXAMPLE_TEXT} is not here; run this in a clone of the project, or give text with --data"
        )
    return str(EXAMPLE_TEXT)


def prepare_command(scale: Scale) -> str:
    """Returns the command that prepares text for a scale."""
    setting = SETTINGS[scale]
    mixture = "".join(f' "{spec}"' for spec in setting.mixture)
    held_out = f"--validation {setting.held_out:g} --test {setting.held_out:g}"
    return f"loopt data prepare --source TEXTS{mixture} --tokenizer {TOKENIZER} {held_out} --out data/language"
