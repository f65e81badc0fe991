"""loopt score RUN"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.table import Table

from loopt.commands.parsing import checkpoint_named, parse_options
from loopt.devices import DeviceName, pick_device
from loopt.errors import InputError
from loopt.files import explain_os_errors
from loopt.report.screen import printable, screen
from loopt.runs import Run
from loopt.scoring import score_text


@dataclass(frozen=True)
class Options:
    """Print the log-probability of every token of a text, its bits per byte and its perplexity. For example:

    loopt score runs/lm-cpu --text "She was a very good woman."

    loopt score runs/lm-cpu --file chapter.txt --summary

    The text is read as a document of its own. One longer than the model's max_len is read in windows, in which every
    token sees at least the half of max_len before it.
    """

    run: tyro.conf.Positional[Path]
    """Directory of a language model's run."""
    text: str | None = None
    """The text."""
    file: Path | None = None
    """A file with the text, in UTF-8."""
    loops: int | None = None
    """How often to run the loopable block; as often as in training unless given."""
    summary: bool = False
    """Print the last line alone, without the tokens."""
    json: bool = False
    """Print everything as one JSON object."""
    checkpoint: str = "best"
    """best, last, or a step."""
    device: DeviceName = "auto"
    """Where to run the model."""


def main(arguments: list[str]) -> int:
    options = parse_options(Options, arguments, "loopt score")
    text = _text(options)
    run = Run.load(options.run)
    model = run.load_model(checkpoint_named(options.checkpoint)).to(pick_device(options.device))
    score = score_text(model, text, run.codec, options.loops)
    if options.json:
        figures = {"bytes": score.bytes, "bits_per_byte": score.bits_per_byte, "perplexity": score.perplexity}
        tokens = {"tokens": score.tokens, "pieces": score.pieces, "log_probabilities": score.log_probabilities}
        print(json.dumps(tokens | figures, ensure_ascii=False))
        return 0
    if not options.summary:
        table = Table()
        for column in ("token", "text", "log-probability", "probability"):
            table.add_column(column, justify="left" if column == "text" else "right")
        for token, piece, found in zip(score.tokens, score.pieces, score.log_probabilities, strict=True):
            table.add_row(str(token), repr(piece), f"{found:.4f}", f"{math.exp(found):.2%}")
        screen().print(table)
    print(
        f"{len(score.tokens):,} tokens, {score.bytes:,} bytes: "
        f"{score.bits_per_byte:.4f} bits per byte, perplexity {score.perplexity:.3f}"
    )
    return 0


def _text(options: Options) -> str:
    if (options.text is None) == (options.file is None):
        raise InputError('text: which one? Allowed is one of --text "…" and --file PATH')
    if options.file is None:
        return options.text or ""
    try:
        with explain_os_errors(f"read {options.file}"):
            return options.file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"file={printable(options.file)}: allowed is text in UTF-8") from None
