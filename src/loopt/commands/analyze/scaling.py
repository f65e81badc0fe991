"""loopt analyze scaling FILE..."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro
from rich.table import Table

from loopt.analysis.intervals import Interval
from loopt.analysis.loop_exponent import LoopLaw, fit_loop_law
from loopt.analysis.points import Point, read_point, shared_metrics
from loopt.analysis.scaling import DepthLaw, Series, fit_depth_law, series_of
from loopt.commands.analyze.output import OF_FILES, names_of, shown, write_json
from loopt.commands.parsing import parse_options
from loopt.report.scaling_figure import draw_scaling
from loopt.report.screen import screen

FIGURE_3 = ("perplexity", "token_accuracy", "closed_book", "open_book", "math_word_problems", "primitives")


@dataclass(frozen=True)
class Options:
    """Fit score = α·log(depth) + β to models (k⊗L) and (kL⊗1), and compare the two α: how much depth by looping gives
    beside depth by layers (the paper's Figure 3). Beside it φ, what a loop is worth in parameters: the loss as
    E + A·(N_once + r^φ·N_loop)^-α, for models trained on equally many tokens. All with 95% intervals. Writes
    scaling.json, scaling.svg and scaling.png. For example:

    loopt analyze scaling runs/results/language/short/4x*-seed0.json --metrics perplexity token_accuracy
    """

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Result files, or directories of finished runs; several seeds of a plan are several points."""
    metrics: tuple[str, ...] = ()
    """Which metrics, a panel each; those of the paper's Figure 3 that every file has unless given, or else all."""
    out: Path = OF_FILES
    """Directory of the files."""


def main(name: str, arguments: list[str]) -> None:
    options = parse_options(Options, arguments, f"loopt analyze {name}")
    points = [read_point(path) for path in names_of(options.files)]
    series = series_of(points)
    metrics = shared_metrics(points, options.metrics)
    if not options.metrics:
        metrics = [metric for metric in FIGURE_3 if metric in metrics] or metrics
    laws = [fit_depth_law(series, metric) for metric in metrics]
    loop_law = fit_loop_law(points)
    screen().print(_table(series, laws))
    print(_in_words(loop_law))
    if series.others:
        print(f"Of φ alone: {', '.join(point.plan.typography for point in series.others)}")
    found = loop_law if isinstance(loop_law, LoopLaw) else None
    data = _as_json(points, series, laws, loop_law)
    write_json(options.out, "scaling", data, lambda folder: draw_scaling(series, laws, found, folder))


def _table(series: Series, laws: Sequence[DepthLaw]) -> Table:
    table = Table(title="score = α·log(depth) + β, with 95% intervals", title_justify="left")
    for column in ("metric", "series", "α", "β", "ratio of α"):
        table.add_column(column, justify="left" if column in ("metric", "series") else "right", overflow="fold")
    for law in laws:
        ratio = shown(law.ratio, law.ratio_interval, 3)
        if law.undefined:
            ratio = law.undefined if law.ratio is None else f"{ratio} ({law.undefined})"
        for title, line, told in ((f"({series.block}⊗L)", law.looped, ratio), ("(D⊗1)", law.deep, "")):
            alpha = _plus_minus(line.slope, line.slope_interval)
            beta = _plus_minus(line.intercept, line.intercept_interval)
            table.add_row(law.metric if told else "", title, alpha, beta, told)
    return table


def _plus_minus(value: float, interval: Interval | None) -> str:
    return f"{value:.3g}" + (f" ± {interval.high - value:.2g}" if interval else "")


def _in_words(law: LoopLaw | str) -> str:
    if isinstance(law, str):
        return f"φ, what a loop is worth, is not determined: {law}"
    fit = f"E = {law.floor:.3f}, A = {law.factor:.4g}, α = {law.alpha:.3f}, residual {law.residual:.2g} nats"
    if not law.determined:
        low, high = law.interval
        return f"φ, what a loop is worth, is not determined: anything from {low:.2f} to {high:.2f} fits ({fit})"
    return f"φ = {shown(law.phi, law.interval, 2)}: r loops are worth r^φ times the parameters ({fit})"


def _as_json(points: Sequence[Point], series: Series, laws: Sequence[DepthLaw], loop_law: LoopLaw | str) -> object:
    models = [
        {"name": point.name, "plan": str(point.plan), "depth": point.plan.depth, "seed": point.seed}
        | {law.metric: point.metrics[law.metric] for law in laws}
        for point in points
    ]
    exponent = (
        {"undetermined": loop_law}
        if isinstance(loop_law, str)
        else asdict(loop_law) | {"determined": loop_law.determined}
    )
    return {"block": series.block, "models": models, "laws": [asdict(law) for law in laws], "loop_exponent": exponent}
