"""The pages of loopt thoughts: which models, on which examples, written to a file or served."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from loopt._version import __version__
from loopt.analysis.exploration import MOST_STEPS, SURE, TOP, Exploration, Subject, draw_examples
from loopt.analysis.latents import steps_trained
from loopt.analysis.probes import fit_probes
from loopt.commands.parsing import checkpoint_named
from loopt.devices import pick_device
from loopt.errors import InputError, require
from loopt.files import explain_os_errors, write_atomically
from loopt.report.explorer import render_explorer
from loopt.report.explorer.server import ExplorerServer
from loopt.report.screen import printable, screen
from loopt.runs import Run
from loopt.shipped import PLANS, load_shipped
from loopt.tasks import GroupComposition, PHop, Task
from loopt.tasks.after_start import without_start
from loopt.text.index import TOKENIZER
from loopt.theory.phop import build_looped

if TYPE_CHECKING:
    from loopt.commands.thoughts import Options

SHIPPED_NAMES = {"1x4": "looped", "1x1": "run once", "4x1": "unlooped"}
TITLES = {"phop": "Hops", "addition": "Addition", "igsm": "i-GSM", "assignment": "Variable assignment"}
FIRST_TEXT = "Once upon a time"
"""What a served page shows before anything is typed, where models read text."""
PROBED_TOKENS = 16_384
"""Probes are fitted on at most as many positions; they have no more inputs than the model has dimensions."""


def gather(options: Options) -> Exploration:
    """Returns the models that the options name, and what reads their tokens; without runs, those of the package."""
    if not options.runs:
        return _shipped(options)
    runs = [Run.load(directory) for directory in options.runs]
    first = runs[0]
    for other in runs[1:]:
        if _vocabulary(other) != _vocabulary(first):
            raise InputError(
                f"runs: {other.directory} reads other tokens than {first.directory}; allowed are runs on the same task "
                "and settings, or with the same tokenizer"
            )
    task, _ = _read_after_start(first)
    if task is None and options.input is None and not options.serve:
        raise InputError('input: which text? Give some with --input "…"')
    device, subjects = pick_device(options.device), []
    for run in runs:
        model = run.load_model(checkpoint_named(options.checkpoint)).eval().to(device)
        result = run.read_result() or {}
        name, (_, start) = f"{run.directory.name} {model.config.plan.typography}", _read_after_start(run)
        subjects.append(Subject(name, _scored(result), model, start))
    codec = first.codec if task is None else task.codec(first.directory)
    return Exploration([*subjects, *_built(options, task)], task, codec)


def show(options: Options, arguments: list[str]) -> int:
    """Writes the page, or serves it until the user stops it."""
    models, page = make_page(options, arguments)
    if options.page:
        out = options.out or (options.runs[0] if options.runs else Path()) / "thoughts.html"
        with explain_os_errors(f"write {out}"):
            out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out, page)
        screen().print(f"Wrote {printable(out)}, {len(page.encode()) / 1e6:.1f} MB: open it in a browser")
    if options.serve:
        with make_server(options.port, models, page) as server:
            print(f"Serving {server.address} on this machine only; Ctrl-C stops it", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
    return 0


def make_page(options: Options, arguments: list[str]) -> tuple[Exploration, str]:
    """Returns the models that the options name, with their probes, and the page that shows them."""
    require(1 <= options.examples <= 20, "examples", options.examples, "1 to 20", InputError)
    require(0 <= options.probe_examples <= 100_000, "probe_examples", options.probe_examples, "0 to 100000", InputError)
    require(0 <= options.port <= 65535, "port", options.port, "0 to 65535", InputError)
    if options.loops is not None:
        require(1 <= options.loops <= MOST_STEPS, "loops", options.loops, f"1 to {MOST_STEPS}, on a page", InputError)
    models = gather(options)
    examples = _examples(options, models)
    with screen(stderr=True).status("looking") as status:
        models = _with_loops_and_probes(options, models, status.update)
        status.update("running the models")
        page = render_explorer(
            _title(models),
            models.describe_models(),
            models.describe(examples),
            top=TOP,
            sure=SURE,
            command=shlex.join(["loopt", "thoughts", *arguments]),
            version=__version__,
            serve=options.serve,
        )
    return models, page


def make_server(port: int, models: Exploration, page: str) -> ExplorerServer:
    """Returns a server of the page that has the models read what is typed into it."""

    def think(text: str, seconds: float) -> dict[str, object]:
        return models.describe([("typed", models.encode(text))], seconds)[0]

    try:
        return ExplorerServer(port, page, think, models.allowed)
    except OSError as error:
        raise InputError(f"port={port}: {error.strerror}; --port 0 takes any that is free") from None


def _shipped(options: Options) -> Exploration:
    device, subjects, tasks = pick_device(options.device), [], []
    for plan in PLANS:
        one = load_shipped(plan)
        name = f"{one.model.config.plan.typography} {SHIPPED_NAMES[plan]}"
        subjects.append(Subject(name, _scored(one.result), one.model.to(device)))
        tasks.append(one.task)
    return Exploration([*subjects, *_built(replace(options, built=True), tasks[0])], tasks[0], tasks[0].codec(Path()))


def _built(options: Options, task: Task | None) -> list[Subject]:
    if not options.built:
        return []
    if not isinstance(task, PHop) or task.mixed:
        raise InputError("built: allowed for runs on p-hop with one p, for which the corollary builds a model")
    model = build_looped(task.p[0], task.n, task.alphabet).model().eval().to(pick_device(options.device))
    name = f"{model.config.plan.typography} built"
    note = (
        "built by Corollary 5.3, not trained; its states hold pointers, and letters in binary digits, which a linear "
        "probe of letters may not read"
    )
    return [Subject(name, note, model, start=task.alphabet + 1)]


def _read_after_start(run: Run) -> tuple[Task | None, int | None]:
    """Returns the task of a run, or None where it was trained on text, and the token that its model reads first."""
    source = run.config.source
    return without_start(source) if isinstance(source, Task) else (None, None)


def _vocabulary(run: Run) -> object:
    """Returns what two runs have in common whose models can read the same input."""
    task, _ = _read_after_start(run)
    if task is not None:
        return replace(task, train_examples=None, answer_weight=0.0, target_accuracy=None)
    with explain_os_errors(f"read {run.directory / TOKENIZER}"):
        return (run.directory / TOKENIZER).read_text(encoding="utf-8")


def _scored(result: dict[str, object]) -> str:
    accuracy, examples = result.get("accuracy"), result.get("test_examples")
    if isinstance(accuracy, float) and isinstance(examples, int):
        return f"right on {accuracy:.1%} of {examples:,} test examples"
    return ""


def _examples(options: Options, models: Exploration) -> list[tuple[str, list[int]]]:
    if options.input is not None:
        return [("your input", models.encode(options.input))]
    if models.task is None:
        return [("a text to begin with", models.codec.encode(FIRST_TEXT)[: models.longest])]
    found = draw_examples(models.task, options.index, options.examples)
    if len(found[0][1]) > models.longest:
        raise InputError(f"examples of {len(found[0][1])} tokens: a page shows up to {models.longest}")
    return found


def _with_loops_and_probes(options: Options, models: Exploration, say: Callable[[str], None]) -> Exploration:
    task, subjects = models.task, []
    for one in models.subjects:
        trained = steps_trained(one.model)
        one = replace(one, loops=options.loops or min(2 * trained, max(trained, MOST_STEPS)))
        if task is not None and options.probe_examples:
            few = min(options.probe_examples, max(16, PROBED_TOKENS // task.length))
            loops = one.steps if one.loops_further else None
            tell = _telling(say, one.name)
            one = replace(one, probes=fit_probes(one.model, task, loops, few, one.start, tell))
        subjects.append(one)
    return replace(models, subjects=subjects)


def _telling(say: Callable[[str], None], name: str) -> Callable[[str], None]:
    return lambda text: say(f"fitting probes, {printable(name)}: {text}")


def _title(models: Exploration) -> str:
    match models.task:
        case None:
            return "What each loop would say next"
        case PHop(p=(p,)):
            return f"{p}-hop induction, loop by loop"
        case GroupComposition(group=group):
            return f"Products in {group}, loop by loop"
        case task:
            return f"{TITLES.get(task.name, task.name)}, loop by loop"
