"""loopt similarity RUN"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.table import Table
from torch import Tensor

from loopt.commands.parsing import checkpoint_named, parse_options
from loopt.errors import InputError, MissingPackageError
from loopt.files import explain_os_errors, write_atomically
from loopt.model import Layer
from loopt.report.heatmaps import draw_heatmaps
from loopt.report.screen import printable, screen
from loopt.runs import Run
from loopt.similarity import cosine_matrix, layer_groups


@dataclass(frozen=True)
class Options:
    """Compare a run's layers by the cosine similarity of their weights: print the mean over layers that are k apart,
    and write similarity.json and similarity.png, a heatmap for each parameter group. For example:

    loopt similarity runs/lm-cpu --apart 1 2
    """

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    apart: tuple[int, ...] = ()
    """Compare layers i and i + k, for these k; all that divide the number of layers unless given."""
    checkpoint: str = "best"
    """best, last, or a step."""
    out: Path | None = None
    """Directory of the two files; the run's unless given."""


def main(arguments: list[str]) -> int:
    options = parse_options(Options, arguments, "loopt similarity")
    model = Run.load(options.run).load_model(checkpoint_named(options.checkpoint))
    layers = [layer_groups(layer) for layer in model.loop.layers if isinstance(layer, Layer)]
    count = len(layers)
    if count < 2:
        raise InputError(f"{options.run}: its model has one layer; there is nothing to compare it with")
    for k in options.apart:
        if not 1 <= k < count:
            raise InputError(f"apart={k}: allowed is 1 to {count - 1}, since the model has {count} distinct layers")
    matrices = cosine_matrix(layers)
    table = Table(title="Mean cosine of layers i and i + k", title_justify="left")
    table.add_column("k", justify="right")
    for group in matrices:
        table.add_column(group, justify="right")
    for k in options.apart or [k for k in range(1, count) if count % k == 0]:
        table.add_row(str(k), *(f"{matrix.diagonal(k).mean():.3f}" for matrix in matrices.values()))
    screen().print(table)
    folder = options.out or options.run
    with explain_os_errors(f"write {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        cosines = {group: matrix.tolist() for group, matrix in matrices.items()}
        write_atomically(folder / "similarity.json", json.dumps(cosines) + "\n")
    print(printable(f"All cosines: {folder / 'similarity.json'}; {_drawn(matrices, folder / 'similarity.png')}"))
    return 0


def _drawn(matrices: Mapping[str, Tensor], path: Path) -> str:
    """Draws the heatmaps and says where they are, or why not: without matplotlib there are still the numbers."""
    try:
        draw_heatmaps(matrices, path)
    except MissingPackageError as error:
        return f"not drawn: {error}"
    return f"drawn: {path}"
