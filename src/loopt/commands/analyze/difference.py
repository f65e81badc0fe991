"""loopt analyze difference BASE MODEL"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import tyro

from loopt.analysis.difference import Difference, difference_between
from loopt.analysis.points import read_point, shared_metrics
from loopt.commands.analyze.output import OF_FILES, score_cell, shown, table_of_metrics, titles_of, write_json
from loopt.commands.analyze.pairing import paired
from loopt.commands.parsing import parse_options
from loopt.evaluation.catalogue import metric_in_words
from loopt.report.difference_figure import draw_differences
from loopt.report.screen import screen

BITS = "/bits_per_byte"


@dataclass(frozen=True)
class Options:
    """Print how much more MODEL scores than BASE, metric by metric, such as a regularized model than its baseline.
    Where the files have standard errors the difference comes with a 95% interval; bits per byte are compared question
    by question where both files have their answers beside them, and perplexity sequence by sequence where they have
    each one's loss, as those of `loopt reproduce language` do. Of perplexity, loss and bits per byte, less is better.
    Writes difference.json, difference.svg and difference.png. For example:

    loopt analyze difference results/language/short/4x1-seed0.json results/language/short/4x6-seed0.json
    """

    base: tyro.conf.Positional[Path]
    """What is compared with: the directory of a finished run, or a result file."""
    model: tyro.conf.Positional[Path]
    """What is compared."""
    metrics: tuple[str, ...] = ()
    """Which metrics; all that both have unless given."""
    out: Path = OF_FILES
    """Directory of the files."""


def main(name: str, arguments: list[str]) -> None:
    options = parse_options(Options, arguments, f"loopt analyze {name}")
    base, model = read_point(options.base), read_point(options.model)
    titles = titles_of([base, model])
    metrics = shared_metrics([base, model], options.metrics)
    together = paired([options.model, options.base], [model, base])
    found = {one: difference_between(model.measured(one), base.measured(one), together.get(one)) for one in metrics}
    rows = [
        [metric_in_words(metric), score_cell(base, metric), score_cell(model, metric), _shown(difference)]
        for metric, difference in found.items()
    ]
    title = "Difference, with its 95% interval where known; * beyond noise"
    screen().print(table_of_metrics(title, [*titles, "difference"], rows))
    values = {
        metric: asdict(difference) | {"base": base.metrics[metric], "model": model.metrics[metric]}
        for metric, difference in found.items()
    }
    data = {"base": base.name, "model": model.name, "differences": values}
    write_json(options.out, "difference", data, lambda to: draw_differences(_by_unit(found), titles[0], titles[1], to))


def _by_unit(differences: dict[str, Difference]) -> dict[str, dict[str, Difference]]:
    """Returns the differences by what a figure can show on one axis; perplexity would squeeze the others."""
    by_unit: dict[str, dict[str, Difference]] = {"score": {}, "bits per byte, less is better": {}}
    for metric, difference in differences.items():
        if metric.endswith(BITS):
            by_unit["bits per byte, less is better"][metric_in_words(metric.removesuffix(BITS))] = difference
        elif not metric.endswith(("perplexity", "loss")):
            by_unit["score"][metric_in_words(metric)] = difference
    return by_unit


def _shown(difference: Difference) -> str:
    sign = "+" if difference.value > 0 else ""
    return sign + shown(difference.value, difference.interval, 3) + (" *" if difference.beyond_noise else "")
