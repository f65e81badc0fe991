"""loopt thoughts RUN"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.table import Table
from rich.text import Text

from loopt.analysis import answers_by_loop
from loopt.commands.parsing import checkpoint_named, parse_options
from loopt.devices import DeviceName, pick_device
from loopt.errors import InputError
from loopt.report.screen import screen
from loopt.runs import Run
from loopt.tasks import IGNORE, Task
from loopt.text.index import TOKENIZER
from loopt.text.tokenizer import TokenizerFile


@dataclass(frozen=True)
class Options:
    """Print what a trained model would answer after each loop of its loopable block: the likeliest tokens, their
    probability, and the entropy. For example:

    loopt thoughts runs/phop-cpu --input "abcabdabc" --loops 8

    loopt thoughts runs/lm-cpu --input "She was a very" --top 5
    """

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    input: str | None = None
    """What the model reads: text, or an example of its task; unless given, a test example of the task."""
    index: int = 0
    """Which test example, where no input is given."""
    position: int = -1
    """After which token to look, counted from 0; -1 is the last."""
    loops: int | None = None
    """How many loops to look at; the plan's own number unless given."""
    top: int = 3
    """How many of the likeliest tokens to print."""
    checkpoint: str = "best"
    """best, last, or a step."""
    device: DeviceName = "auto"
    """Where to run the model."""


def main(arguments: list[str]) -> int:
    options = parse_options(Options, arguments, "loopt thoughts")
    if options.top < 1:
        raise InputError(f"top={options.top}: allowed is 1 or more")
    run = Run.load(options.run)
    tokens, right_answers, decode = _prompt(run, options)
    longest = run.config.model.max_len
    if not 1 <= len(tokens) <= longest:
        raise InputError(f"input of {len(tokens)} tokens: allowed are 1 to {longest}, the model's max_len")
    if not -len(tokens) <= options.position < len(tokens):
        raise InputError(f"position={options.position}: allowed is 0 to {len(tokens) - 1}, or -1 for the last")
    model = run.load_model(checkpoint_named(options.checkpoint)).to(pick_device(options.device))
    answers = answers_by_loop(model, tokens, options.loops, options.top)

    position = options.position % len(tokens)
    right = right_answers[position]
    title = f"After token {position}, {decode(tokens[position])!r}, of {len(tokens)}"
    table = Table(title=f"{title}; right is {right!r}" if right else title, title_justify="left")
    table.add_column("loops", justify="right")
    for place in range(len(answers[0].choices[position])):
        table.add_column("first choice" if place == 0 else f"choice {place + 1}")
    table.add_column("entropy, nats", justify="right")
    for answer in answers:
        cells = []
        for token, probability in zip(answer.choices[position], answer.probabilities[position], strict=True):
            word = decode(token)
            cells.append(Text(f"{word!r} {probability:.1%}", style="green" if right and word == right else ""))
        table.add_row(str(answer.loops), *cells, f"{answer.entropy[position]:.3f}")
    screen().print(table)
    return 0


def _prompt(run: Run, options: Options) -> tuple[list[int], list[str], Callable[[int], str]]:
    """Returns the input's tokens, the right answer at each (empty where nothing is asked), and what decodes a token."""
    task = run.config.source
    if isinstance(task, Task):
        if options.input is not None:
            tokens = task.encode(options.input)
        else:
            tokens = task.sample(range(options.index, options.index + 1), 0, "test").tokens[0].tolist()
        words = dict(enumerate(task.vocabulary))
        right = ["" if label == IGNORE else words[label] for label in task.solve(tokens)] if tokens else []
        return tokens, right, lambda token: words.get(token, f"<{token}>")
    if options.input is None:
        raise InputError('input: which text? Give some with --input "…"')
    tokenizer = TokenizerFile.find(str(run.directory / TOKENIZER)).tokenizer
    tokens = tokenizer.encode(options.input, add_special_tokens=False).ids
    return tokens, [""] * len(tokens), lambda token: tokenizer.decode([token], skip_special_tokens=False)
