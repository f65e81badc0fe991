"""loopt analyze exit RUN, loopt analyze cache RUN, loopt analyze drafts RUN

All decode held-out examples token by token: text from its middle on, a task from its answer on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import tyro
from rich.table import Table

from loopt.analysis.drafts import draft_points
from loopt.analysis.exits import ExitPoint, exit_points, rules_for
from loopt.analysis.forced import Given, decode_given
from loopt.commands.analyze.output import write_json
from loopt.commands.parsing import checkpoint_named, parse_options
from loopt.devices import DeviceName, pick_device
from loopt.errors import InputError, require
from loopt.generation import CachePolicy, Settings, cache_bytes
from loopt.limits import LARGEST
from loopt.model import LoopedTransformer
from loopt.report.exit_curve import draw_exit_curve
from loopt.report.screen import screen
from loopt.runs import Run
from loopt.scoring import perplexity
from loopt.scoring.precision import bfloat16_copy
from loopt.source import Split
from loopt.text.source import Text


@dataclass(frozen=True)
class ExitOptions:
    """Measure and draw quality against mean loops, for exit rules with several thresholds and for fixed loops. Writes
    exit.json, exit.svg and exit.png. For example:

    loopt analyze exit runs/lm-cpu --rules entropy kl
    """

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    rules: tuple[Literal["change", "kl", "entropy", "gate"], ...] = ()
    """Which exit rules to try; all that the model has what it takes for unless given."""
    examples: int = 64
    """Examples, or sequences of text, to decode."""
    split: Literal["validation", "test"] = "test"
    """Of which split."""
    checkpoint: str = "best"
    """best, last, or a step."""
    data: str | None = None
    """Where the text is now, if it has moved since training."""
    device: DeviceName = "auto"
    """Where to run the model."""
    out: Path | None = None
    """Directory of the files; the run's unless given."""


@dataclass(frozen=True)
class CacheOptions:
    """Measure memory and quality of each cache policy. For example:

    loopt analyze cache runs/lm-cpu --windows 8 32
    """

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    windows: tuple[int, ...] = (16, 64)
    """Windows of first+window to try: tokens that are seen in every loop but the first."""
    loops: int | None = None
    """How often to run the loopable block; as often as in training unless given."""
    examples: int = 64
    """Examples, or sequences of text, to decode."""
    split: Literal["validation", "test"] = "test"
    """Of which split."""
    checkpoint: str = "best"
    """best, last, or a step."""
    data: str | None = None
    """Where the text is now, if it has moved since training."""
    device: DeviceName = "auto"
    """Where to run the model."""


@dataclass(frozen=True)
class DraftOptions:
    """Measure self-speculation: drafts with few loops, verified with all. For example:

    loopt analyze drafts runs/lm-cpu --draft-loops 1 2 --draft-tokens 2 4
    """

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    draft_loops: tuple[int, ...] = (1,)
    """Numbers of loops to draft with."""
    draft_tokens: tuple[int, ...] = (2, 4)
    """Numbers of tokens to draft before they are verified."""
    examples: int = 1
    """Examples, or sequences of text, to go on with side by side."""
    split: Literal["validation", "test"] = "test"
    """Of which split."""
    checkpoint: str = "best"
    """best, last, or a step."""
    data: str | None = None
    """Where the text is now, if it has moved since training."""
    device: DeviceName = "auto"
    """Where to run the model; on cuda, language models run in bfloat16."""


def main(name: str, arguments: list[str]) -> None:
    match name:
        case "exit":
            _exit(parse_options(ExitOptions, arguments, "loopt analyze exit"))
        case "cache":
            _cache(parse_options(CacheOptions, arguments, "loopt analyze cache"))
        case "drafts":
            _drafts(parse_options(DraftOptions, arguments, "loopt analyze drafts"))


def _load(options: ExitOptions | CacheOptions | DraftOptions) -> tuple[Run, LoopedTransformer, Given]:
    require(1 <= options.examples <= LARGEST, "examples", options.examples, f"1 to {LARGEST}", InputError)
    run = Run.load(options.run)
    model = run.load_model(checkpoint_named(options.checkpoint)).to(pick_device(options.device))
    source = run.config.source
    if isinstance(source, Text):
        source = replace(source, data=options.data or source.data).prepared(options.run)
        model = bfloat16_copy(model) if model.token_embedding.weight.is_cuda else model
    split: Split = options.split
    device = model.token_embedding.weight.device
    return run, model, Given.of(source, model.config.max_len, options.examples, split, device)


def _exit(options: ExitOptions) -> None:
    run, model, given = _load(options)
    is_text = isinstance(run.config.source, Text)
    rules = rules_for(model, options.rules)
    model.config.plan.around_loop()  # a plan that does not tell what to loop is refused before anything is measured
    points: list[ExitPoint] = []
    with screen(stderr=True).status("decoding") as status:
        for point in exit_points(model, given, rules):
            status.update(f"decoding: {point.rule} {point.setting:g}")
            points.append(point)
    table = Table(title=_title(given), title_justify="left")
    for column in ("rule", "loops or threshold", "mean loops", *(_columns(is_text))):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for point in points:
        quality = _qualities(point.decoded.loss, point.decoded.accuracy, is_text)
        table.add_row(point.rule, f"{point.setting:g}", f"{point.decoded.mean_loops:.2f}", *quality)
    screen().print(table)
    curves: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        value = perplexity(point.decoded.loss) if is_text else 100 * point.decoded.accuracy
        curves.setdefault(point.rule, []).append((point.decoded.mean_loops, value))
    measured = [asdict(point) for point in points]
    ylabel = "perplexity" if is_text else "accuracy, %"
    write_json(options.out or options.run, "exit", measured, lambda to: draw_exit_curve(curves, ylabel, to))


def _cache(options: CacheOptions) -> None:
    run, model, given = _load(options)
    is_text = isinstance(run.config.source, Text)
    plan, length = model.plan_with(options.loops), given.tokens.shape[1]
    policies = [CachePolicy("all"), CachePolicy("last")]
    policies += [CachePolicy("first+window", window) for window in options.windows]
    table = Table(title=f"{plan}, {_title(given)}", title_justify="left")
    for column in ("cache", f"bytes a sequence of {length}", "of all", *_columns(is_text)):
        table.add_column(column, justify="left" if column == "cache" else "right")
    width = model.token_embedding.weight.dtype.itemsize
    whole = cache_bytes(model.config, plan, 1, length, policies[0], width)
    for policy in policies:
        with screen(stderr=True).status(f"decoding: {policy.name}"):
            decoded = decode_given(model, given, loops=options.loops, policy=policy)
        kept = cache_bytes(model.config, plan, 1, length, policy, width)
        name = f"{policy.name} {policy.window}" if policy.name == "first+window" else policy.name
        table.add_row(name, f"{kept:,}", f"{kept / whole:.0%}", *_qualities(decoded.loss, decoded.accuracy, is_text))
    screen().print(table)


def _drafts(options: DraftOptions) -> None:
    _, model, given = _load(options)
    new_tokens = given.tokens.shape[1] - given.prompt
    for loops in options.draft_loops:
        for tokens in options.draft_tokens:
            Settings(draft_loops=loops, draft_tokens=tokens).check(model)
    table = Table(title=f"{len(given.tokens)} prompts of {given.prompt} tokens, {new_tokens} new ones")
    for column in ("draft loops", "draft tokens", "accepted", "speed, x plain", "differing tokens"):
        table.add_column(column, justify="right")
    prompts = given.tokens[:, : given.prompt].tolist()
    with screen(stderr=True).status("decoding"):
        for point in draft_points(model, prompts, new_tokens, options.draft_loops, options.draft_tokens):
            shares = (f"{point.accepted:.1%}", f"{point.speed:.2f}", f"{point.differing:.1%}")
            table.add_row(str(point.draft_loops), str(point.draft_tokens), *shares)
    screen().print(table)


def _title(given: Given) -> str:
    rows, length = given.tokens.shape
    return f"{rows} examples of {length} tokens, of which the last {length - given.prompt} are decoded"


def _columns(is_text: bool) -> tuple[str, str]:
    return ("perplexity" if is_text else "accuracy", "loss")


def _qualities(loss: float, accuracy: float, is_text: bool) -> tuple[str, str]:
    return (f"{perplexity(loss):.3f}" if is_text else f"{accuracy:.1%}"), f"{loss:.4f}"
