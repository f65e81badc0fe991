"""loopt analyze similarity RUN... [--hf NAME...]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.table import Table
from torch import Tensor

from loopt.commands.analyze.output import names_of, write_json
from loopt.commands.parsing import checkpoint_named, parse_options
from loopt.errors import InputError
from loopt.model import Layer
from loopt.report.heatmaps import draw_heatmaps
from loopt.report.screen import screen
from loopt.runs import Run
from loopt.similarity import Groups, cosine_matrix, layer_groups


@dataclass(frozen=True)
class Options:
    """Compare a run's layers by the cosine similarity of their weights: print the mean over layers that are k apart,
    and write similarity.json, similarity.svg and similarity.png, a row of heatmaps for each run, one for each parameter
    group (the paper's Figures 5 and 6). For example:

    loopt analyze similarity runs/regularized runs/baseline --apart 4
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Directories of runs, shown side by side."""
    hf: tuple[str, ...] = ()
    """Decoders of Hugging Face besides: names or directories. Their code is not trusted."""
    apart: tuple[int, ...] = ()
    """Compare layers i and i + k, for these k; all that divide the number of layers unless given."""
    checkpoint: str = "best"
    """best, last, or a step."""
    out: Path | None = None
    """Directory of the files; the first run's unless given. To be given where all models are from Hugging Face."""


def main(name: str, arguments: list[str]) -> None:
    options = parse_options(Options, arguments, f"loopt analyze {name}")
    if not options.runs and not options.hf:
        raise InputError("runs: which models? Allowed are directories of runs, and --hf NAME_OR_DIR")
    folder = options.out or next(iter(options.runs), None)
    if folder is None:
        raise InputError("out: where to? With --hf alone, allowed is --out DIR")
    found = {title: _cosines(run, options) for run, title in (names_of(options.runs) if options.runs else {}).items()}
    found |= {name: _cosines_between(name, _hugging_face_layers(name), options) for name in options.hf}
    for title, matrices in found.items():
        screen().print(_table(title, matrices, options.apart))
    cosines = {title: {group: m.tolist() for group, m in matrices.items()} for title, matrices in found.items()}
    write_json(folder, "similarity", cosines, lambda to: draw_heatmaps(found, to))


def _cosines(path: Path, options: Options) -> dict[str, Tensor]:
    """Returns the cosine of every layer with every layer, by parameter group [L, L]."""
    model = Run.load(path).load_model(checkpoint_named(options.checkpoint))
    layers = [layer_groups(layer) for layer in model.loop.layers if isinstance(layer, Layer)]
    return _cosines_between(str(path), layers, options)


def _hugging_face_layers(name: str) -> Sequence[Groups]:
    """Returns the matrices of a decoder's layers, by their names."""
    from loopt.hf import load_decoder
    from loopt.hf.decoder_layers import matrices_by_layer

    return matrices_by_layer(load_decoder(name))


def _cosines_between(path: str, layers: Sequence[Groups], options: Options) -> dict[str, Tensor]:
    count = len(layers)
    if count < 2:
        raise InputError(f"{path}: its model has one layer; there is nothing to compare it with")
    for k in options.apart:
        if not 1 <= k < count:
            raise InputError(f"apart={k}: allowed is 1 to {count - 1}, since {path} has {count} distinct layers")
    return cosine_matrix(layers)


def _table(title: str, matrices: Mapping[str, Tensor], apart: tuple[int, ...]) -> Table:
    count = len(next(iter(matrices.values())))
    table = Table(title=f"{title}: mean cosine of layers i and i + k", title_justify="left")
    for column in ("k", *matrices):
        table.add_column(column, justify="right")
    for k in apart or [k for k in range(1, count) if count % k == 0]:
        table.add_row(str(k), *(f"{matrix.diagonal(k).mean():.3f}" for matrix in matrices.values()))
    return table
