"""loopt generate RUN"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from loopt.commands.parsing import checkpoint_named, parse_options
from loopt.devices import DeviceName, pick_device
from loopt.errors import InputError
from loopt.files import explain_os_errors, parse_json
from loopt.generation import Completion, Engine, Settings, cache_bytes
from loopt.generation.engine import read_prompts, room_for
from loopt.model import LoopedTransformer
from loopt.report.drawing import human
from loopt.report.screen import printable
from loopt.runs import Run
from loopt.scoring.precision import bfloat16_copy
from loopt.text.source import Text

FIRST = (
    *("prompt", "file", "interactive", "loops", "max-new-tokens", "temperature", "top-p", "samples", "seed", "exit"),
    *("json", "checkpoint", "device"),
)


@dataclass(frozen=True)
class Options:
    """Have a trained model go on with a prompt. For example:

    loopt generate runs/lm-cpu --prompt "She was a very" --temperature 0.8 --top-p 0.95

    loopt generate runs/lm-cpu --prompt "It is" "He had" --loops 6 --max-new-tokens 20

    loopt generate runs/lm-cpu --file prompts.txt --json > completions.jsonl

    loopt generate runs/lm-cpu -i --exit entropy:0.5

    A language model's run reads text; that of a task reads the words of the task, as in --prompt abcab.
    """

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    prompt: tuple[str, ...] = ()
    """Prompts, completed side by side."""
    file: Path | None = None
    """A file of prompts: one a line, or .jsonl with the prompt in a field of that name."""
    interactive: Annotated[bool, tyro.conf.arg(aliases=["-i"])] = False
    """Read prompts from the keyboard, and show the text as it comes; Ctrl-C stops a text, Ctrl-D ends."""
    settings: Annotated[Settings, tyro.conf.arg(name="")] = field(default_factory=Settings)
    json: bool = False
    """Print a line of JSON for each completion, with tokens, log-probabilities and loops."""
    checkpoint: str = "best"
    """best, last, or a step."""
    device: DeviceName = "auto"
    """Where to run the model; on cuda, language models run in bfloat16."""


def main(arguments: list[str]) -> int:
    options = parse_options(Options, arguments, "loopt generate", FIRST)
    prompts = _prompts(options)
    run = Run.load(options.run)
    model = run.load_model(checkpoint_named(options.checkpoint)).to(pick_device(options.device))
    if model.token_embedding.weight.is_cuda and isinstance(run.config.source, Text):
        model = bfloat16_copy(model)
    options.settings.check(model)
    if options.interactive:
        return _converse(model, options.settings)
    tokens = read_prompts(model, prompts, model.codec)
    engine = Engine(model, *room_for(model, tokens, options.settings), options.settings)
    began = time.monotonic()
    if len(tokens) * options.settings.samples == 1 and not options.json:
        print(_shown(prompts[0]), end="", flush=True)
        completions = _stream(engine, tokens)
    else:
        completions = engine.generate(tokens)
        for number, completion in enumerate(completions):
            prompt = prompts[number // options.settings.samples]
            print(_line(prompt, completion) if options.json else f"{_shown(prompt)}{_shown(completion.text)}\n")
    print(_summary(engine, completions, time.monotonic() - began), file=sys.stderr)
    return 0


def _prompts(options: Options) -> Sequence[str]:
    given = [bool(options.prompt), options.file is not None, options.interactive]
    if sum(given) != 1:
        raise InputError('prompt: which? Allowed is one of --prompt "…", --file PATH and -i')
    return list(_read_file(options.file)) if options.file is not None else options.prompt


def _read_file(path: Path) -> Iterator[str]:
    try:
        with explain_os_errors(f"read {path}"):
            lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"file={printable(path)}: allowed is text in UTF-8") from None
    for number, line in enumerate(lines, start=1):
        if path.suffix != ".jsonl":
            yield line
            continue
        entry = parse_json(line.encode(), f"{path}:{number}", InputError)
        if not (isinstance(entry, dict) and isinstance(entry.get("prompt"), str)):
            raise InputError(f"{path}:{number}: allowed is an object with a text in its field prompt")
        yield entry["prompt"]


def _stream(engine: Engine, tokens: list[list[int]]) -> list[Completion]:
    """Prints a text as it comes, and ends the line also where it is interrupted."""
    rows = engine.rows_for(tokens)
    try:
        for piece in engine.run(rows):
            print(_shown(piece.text), end="", flush=True)
    finally:
        print(flush=True)
    return [row.completion() for row in rows]


def _converse(model: LoopedTransformer, settings: Settings) -> int:
    while True:
        try:
            prompt = input("> ") if sys.stdin.isatty() else input()
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        try:
            tokens = read_prompts(model, [prompt], model.codec)
            engine = Engine(model, *room_for(model, tokens, replace(settings, samples=1)), replace(settings, samples=1))
            print(_shown(prompt), end="", flush=True)
            _stream(engine, tokens)
        except InputError as error:
            print(f"loopt: {printable(error)}", file=sys.stderr)
        except KeyboardInterrupt:  # only this text is stopped
            continue


def _shown(text: str) -> str:
    """Returns text as a terminal may show it: newlines and tabs as they are, other control characters as escapes."""
    return "".join(c if c in "\n\t" else printable(c) for c in text)


def _line(prompt: str, completion: Completion) -> str:
    return json.dumps({"prompt": prompt, **asdict(completion)}, ensure_ascii=False)


def _summary(engine: Engine, completions: Sequence[Completion], seconds: float) -> str:
    count = sum(len(completion.tokens) for completion in completions)
    loops = sum(sum(completion.loops) for completion in completions) / count
    model, settings = engine.model, engine.settings
    bytes_of_number = model.token_embedding.weight.dtype.itemsize
    plan = model.plan_with(settings.loops)
    kept = cache_bytes(model.config, plan, engine.rows, engine.length, settings.policy, bytes_of_number)
    parts = [
        f"{count} {'token' if count == 1 else 'tokens'} in {seconds:.2f} s, {count / seconds:,.0f} tokens/s",
        f"{loops:.2f} loops a token",
    ]
    if settings.draft_loops is not None:
        drafted = sum(completion.drafted for completion in completions)
        accepted = sum(completion.accepted for completion in completions)
        parts.append(f"{accepted} of {drafted} drafts accepted")
    parts.append(f"cache {settings.cache}: {human(kept)}B for {engine.rows} x {engine.length} tokens")
    return "; ".join(parts)
