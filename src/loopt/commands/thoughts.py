"""loopt thoughts RUN"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.table import Table
from rich.text import Text

from loopt.analysis import answers_by_loop
from loopt.commands import explorer
from loopt.commands.parsing import parse_options
from loopt.devices import DeviceName
from loopt.errors import InputError
from loopt.report.screen import screen
from loopt.tasks import IGNORE


@dataclass(frozen=True)
class Options:
    """See what a trained model would answer after each loop of its loopable block. Prints the likeliest tokens, their
    probability and the entropy; or writes a page on which the problem is solved loop by loop, with attention and
    states. Without a run it takes models that come with loopt. For example:

    loopt thoughts --page

    loopt thoughts runs/phop-cpu --input "abcabdabc" --loops 8

    loopt thoughts runs/looped runs/once runs/deep --built --serve
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Directories of runs; on a page several stand side by side."""
    input: str | None = None
    """What the model reads: text, or an example of its task; unless given, test examples of the task."""
    index: int = 0
    """Which test example, where no input is given."""
    position: int = -1
    """After which token to look, counted from 0; -1 is the last."""
    loops: int | None = None
    """How many loops to look at; the plan's own number unless given, and on a page twice that."""
    top: int = 3
    """How many of the likeliest tokens to print."""
    page: bool = False
    """Write a page, one HTML file that needs no network."""
    serve: bool = False
    """Serve the page on this machine, and run the models on what is typed into it."""
    port: int = 8020
    """Of the server; 0 takes any."""
    built: bool = False
    """On a page, add the model that Corollary 5.3 builds for p-hop."""
    examples: int = 3
    """How many test examples a page has, from --index on."""
    probe_examples: int = 256
    """How many examples probes are fitted on for a page, and measured on; 0: no probes."""
    out: Path | None = None
    """The page's file; thoughts.html in the first run unless given, or here where there is no run."""
    checkpoint: str = "best"
    """best, last, or a step."""
    device: DeviceName = "auto"
    """Where to run the model."""


def main(arguments: list[str]) -> int:
    options = parse_options(Options, arguments, "loopt thoughts")
    if options.top < 1:
        raise InputError(f"top={options.top}: allowed is 1 or more")
    if options.page or options.serve:
        return explorer.show(options, arguments)
    if len(options.runs) > 1:
        raise InputError(f"runs: {len(options.runs)} of them; allowed is one, or several on a page, with --page")
    _print_table(options)
    return 0


def _print_table(options: Options) -> None:
    models = explorer.gather(options)
    model, start, task = models.subjects[0].model, models.subjects[0].start, models.task
    if options.input is not None or task is None:
        tokens = models.codec.encode(options.input or "")
    else:
        tokens = task.sample(range(options.index, options.index + 1), 0, "test").tokens[0].tolist()
    before = [] if start is None else [start]
    longest = model.config.max_len - len(before)
    if not 1 <= len(tokens) <= longest:
        raise InputError(f"input of {len(tokens)} tokens: allowed are 1 to {longest}, the model's max_len")
    if not -len(tokens) <= options.position < len(tokens):
        raise InputError(f"position={options.position}: allowed is 0 to {len(tokens) - 1}, or -1 for the last")
    answers = answers_by_loop(model, [*before, *tokens], options.loops, options.top)

    position = options.position % len(tokens)
    place = len(before) + position
    label = task.solve(tokens)[position] if task else IGNORE
    right = "" if label == IGNORE else models.word(label)
    title = f"After token {position}, {models.word(tokens[position])!r}, of {len(tokens)}"
    table = Table(title=f"{title}; right is {right!r}" if right else title, title_justify="left")
    table.add_column("loops", justify="right")
    for choice in range(len(answers[0].choices[place])):
        table.add_column("first choice" if choice == 0 else f"choice {choice + 1}")
    table.add_column("entropy, nats", justify="right")
    for answer in answers:
        cells = []
        for token, probability in zip(answer.choices[place], answer.probabilities[place], strict=True):
            word = models.word(token)
            cells.append(Text(f"{word!r} {probability:.1%}", style="green" if right and word == right else ""))
        table.add_row(str(answer.loops), *cells, f"{answer.entropy[place]:.3f}")
    screen().print(table)
