"""The demo: on p-hop, one looped layer does what several layers do, in minutes on a laptop."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from loopt.analysis import answers_by_loop
from loopt.files import explain_os_errors
from loopt.plan import LoopPlan
from loopt.report.comparison import Comparison, TrainedModel
from loopt.report.curves import draw_curves
from loopt.report.figures import require_matplotlib
from loopt.report.page import Onwards, Solved, render_page
from loopt.reproduce.task_measurement import TaskMeasurement
from loopt.runs import Run, TrainConfig
from loopt.scoring import exact_match
from loopt.tasks import IGNORE, Task
from loopt.training import Outcome, Session
from loopt.training.progress import Display
from loopt.training.side_by_side import Training, train_side_by_side

TITLE = "Does one layer, looped, do the work of four?"

PAPER = "https://arxiv.org/abs/2502.17416"

SOLVED_EXAMPLES = 1024


@dataclass(frozen=True)
class QuickResult:
    """The three trained models, and the page that shows them."""

    comparison: Comparison
    page: Path


def quick(base: TrainConfig, out: Path, session: Session, say: Callable[[str], None]) -> QuickResult | Outcome:
    """Trains ``base``, a looped model, and its two baselines, and writes the page that compares them. Returns an
    Outcome where training was stopped. The session's time limit is for all three together."""
    require_matplotlib()
    looped = base.model.plan
    plans = {"iso_param": looped.iso_param, "looped": looped, "iso_flop": looped.iso_flop}
    configs = {role: replace(base, model=replace(base.model, plan=plan)) for role, plan in plans.items()}
    trainings = [Training(one, _directory(out, one), one.model.plan.typography) for one in configs.values()]
    with Display(session.progress, [base.steps] * len(trainings)) as display:
        outcomes = train_side_by_side(trainings, session, display)
    for outcome in outcomes:
        if outcome and (not outcome.finished or outcome.signal):
            return outcome
    trained: dict[str, TrainedModel] = {}
    for role, one, outcome in zip(plans, trainings, outcomes, strict=True):
        assert outcome is not None  # none was left out, as none was stopped
        if outcome.reason == "already finished":
            say(f"{one.label}: found in {one.directory}, {TaskMeasurement().describe_finished(outcome.result)}")
        trained[role] = _trained_model(plans[role], outcome.result, Run.load(one.directory))
    comparison = Comparison(**trained)
    chance = 1 / (base.source.vocab_size - 1)  # ⊥ is never the answer to a planted instance
    svg, _ = draw_curves(comparison, chance, out)
    run = Run.load(_directory(out, base))
    facts = _facts(run.config, run.read_result() or {})
    page = out / "index.html"
    with explain_os_errors(f"write {page}"):
        curves = svg.read_text(encoding="utf-8")
        solved, onwards = _solve_one(run), _onwards(run.directory)
        text = render_page(TITLE, claim(comparison), comparison, curves, solved, facts, onwards)
        page.write_text(text, encoding="utf-8")
    return QuickResult(comparison, page)


def claim(comparison: Comparison) -> str:
    """Returns the comparison in words, whichever way it came out."""
    loop, once, deep = comparison.looped, comparison.iso_param, comparison.iso_flop
    (block,) = loop.plan.blocks
    layers = "one layer" if block.layers == 1 else f"{block.layers} layers"
    return (
        f"{loop.name} runs {layers} {block.loops} times. With the {loop.parameters:,} parameters of {once.name} it "
        f"gets {loop.accuracy:.1%} of the test questions right, where {once.name} gets {once.accuracy:.1%} and "
        f"{deep.name}, with {deep.parameters / loop.parameters:.1f} times the parameters, {deep.accuracy:.1%}."
    )


def _directory(out: Path, config: TrainConfig) -> Path:
    return out / f"{config.model.plan}-seed{config.seed}"


def _trained_model(plan: LoopPlan, result: dict[str, Any], run: Run) -> TrainedModel:
    curve = [(m["step"], m["validation_accuracy"]) for m in run.read_metrics() if "validation_accuracy" in m]
    return TrainedModel(
        plan,
        parameters=result["parameters"],
        flops=result["flops"],
        accuracy=result["accuracy"],
        steps=result["step"],
        seconds=result["seconds"],
        curve=curve,
    )


def _solve_one(run: Run) -> Solved:
    task, model = run.config.source, run.load_model("best")
    assert isinstance(task, Task)
    tokens = task.sample(range(1), 0, "test").tokens[0].tolist()
    right = ["" if label == IGNORE else task.vocabulary[label] for label in task.solve(tokens)]
    loops = range(1, run.config.model.plan.blocks[0].loops + 1)
    examples = min(SOLVED_EXAMPLES, run.config.test_examples)
    scores = [exact_match(model, task, "test", examples, n).accuracy for n in loops]
    return Solved(
        drawing=task.render(tokens),
        words=[task.vocabulary[token] for token in tokens],
        right=right,
        answers=answers_by_loop(model, tokens),
        vocabulary=task.vocabulary,
        accuracy_by_loop=scores,
        examples=examples,
    )


def _onwards(directory: Path) -> Onwards:
    """Returns what to try and to read next; addresses of the project's own pages where the package states them."""
    run = shlex.quote(str(directory))
    commands = [
        ("This model at work, loop by loop, as a page", f"loopt thoughts {run} --page"),
        ("More loops than it was trained with", f"loopt eval {run} --loops 1 2 3 4 5 6 8"),
        ("The paper's table of this task, in miniature", "loopt reproduce phop --scale cpu"),
    ]
    try:
        stated = metadata.metadata("loopt").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:  # run from its source
        stated = []
    pages = [(f"loopt: {name}", address) for name, _, address in (one.partition(", ") for one in stated)]
    return Onwards(commands, [*pages, ("The paper: Reasoning with Latent Thoughts", PAPER)])


def _facts(config: TrainConfig, result: dict[str, Any]) -> list[str]:
    model, optim, source = config.model, config.optim, config.source
    assert isinstance(source, Task)
    settings = {field.name: getattr(source, field.name) for field in fields(source)}
    written = {name: " ".join(map(str, v)) if isinstance(v, tuple) else v for name, v in settings.items() if v}
    return [
        f"Task: {source.name}, {', '.join(f'{name} {value}' for name, value in written.items())}",
        f"Model: d_model {model.d_model}, {model.n_heads} heads, d_ff {model.d_ff}, {model.positions} positions",
        f"Training: {optim.name}, peak learning rate {optim.lr}, {config.steps} steps of {config.batch_size} examples, "
        f"seed {config.seed}; the same for all three",
        f"Accuracy: exact match on {config.test_examples} test examples that no model was trained on, of the "
        "checkpoint that was best on validation examples",
        f"On: {result.get('hardware')}, torch {result.get('torch')}, loopt {result.get('loopt')}",
    ]
