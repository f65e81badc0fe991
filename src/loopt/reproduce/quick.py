"""The paper's claim in minutes on a laptop: on p-hop, looping one layer does what several layers do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loopt.analysis import answers_by_loop
from loopt.evaluation import exact_match
from loopt.plan import LoopPlan
from loopt.report.comparison import Comparison, Measured
from loopt.report.curves import draw_curves, require_matplotlib
from loopt.report.page import Solved, render_page
from loopt.runs import Run, TrainConfig
from loopt.tasks import IGNORE
from loopt.training import Outcome, Session, presets, train

TITLE = "One layer, looped, does the work of four"


@dataclass(frozen=True)
class QuickResult:
    comparison: Comparison
    page: Path
    figure: Path


def quick(out: Path, seed: int, session: Session) -> QuickResult | Outcome:
    """Train the looped model and its two baselines, then compare them; an Outcome where training was stopped."""
    require_matplotlib()
    base = replace(presets.phop_cpu(), seed=seed)
    looped = base.model.plan
    plans = {"iso_param": looped.iso_param, "looped": looped, "iso_flop": looped.iso_flop}
    measured: dict[str, Measured] = {}
    for role, plan in plans.items():
        directory = _directory(out, plan, seed)
        config = replace(base, model=replace(base.model, plan=plan))
        outcome = train(config, directory, session, label=f"({plan.distinct_layers}⊗{plan.blocks[0].loops})")
        if not outcome.finished:
            return outcome
        measured[role] = _measure(plan, outcome.result, Run.load(directory))
    comparison = Comparison(**measured)
    figure = out / "curves.png"
    chance = 1 / (len(base.task.vocabulary) - 1)  # ⊥ is never the answer to a planted instance
    svg = draw_curves(comparison, chance, figure)
    solved = _solve_one(Run.load(_directory(out, looped, seed)))
    page = out / "index.html"
    facts = _facts(base.resolved(), Run.load(_directory(out, looped, seed)).read_result() or {})
    page.write_text(render_page(TITLE, claim(comparison), comparison, svg, solved, facts))
    return QuickResult(comparison, page, figure)


def claim(comparison: Comparison) -> str:
    """What the numbers say, whichever way they came out."""
    loop, once, deep = comparison.looped, comparison.iso_param, comparison.iso_flop
    return (
        f"{loop.name} runs one layer {loop.plan.depth} times. With the {loop.parameters:,} parameters of {once.name} "
        f"it answers {loop.accuracy:.1%} of the test questions, where {once.name} answers {once.accuracy:.1%} and "
        f"{deep.name}, with {deep.parameters / loop.parameters:.1f} times the parameters, {deep.accuracy:.1%}."
    )


def _directory(out: Path, plan: LoopPlan, seed: int) -> Path:
    return out / f"{plan}-seed{seed}"


def _measure(plan: LoopPlan, result: dict[str, Any], run: Run) -> Measured:
    curve = [(m["step"], m["validation_accuracy"]) for m in run.read_metrics() if "validation_accuracy" in m]
    return Measured(
        plan,
        parameters=result["parameters"],
        flops=result["flops"],
        accuracy=result["accuracy"],
        steps=result["step"],
        seconds=result["seconds"],
        curve=curve,
    )


def _solve_one(run: Run) -> Solved:
    task, model = run.config.task, run.load_model("best")
    tokens = task.sample(range(1), 0, "test").tokens[0].tolist()
    right = ["" if label == IGNORE else task.vocabulary[label] for label in task.solve(tokens)]
    loops = range(1, run.config.model.plan.depth + 1)
    scores = [exact_match(model, task, "test", 1024, run.config.batch_size, loops=n).accuracy for n in loops]
    return Solved(
        drawing=task.render(tokens),
        words=[task.vocabulary[token] for token in tokens],
        right=right,
        answers=answers_by_loop(model, tokens),
        vocabulary=task.vocabulary,
        accuracy_by_loop=scores,
    )


def _facts(config: TrainConfig, result: dict[str, Any]) -> list[str]:
    task, model, optim = config.task, config.model, config.optim
    return [
        f"Task: {task}",
        f"Model: d_model {model.d_model}, {model.n_heads} heads, d_ff {model.d_ff}, {model.positions} positions",
        f"Training: {optim.name}, peak learning rate {optim.lr}, {config.steps} steps of {config.batch_size} examples, "
        f"seed {config.seed}; the same for all three",
        f"Accuracy: exact match on {config.test_examples} test examples that no model was trained on, of the "
        "checkpoint that was best on validation examples",
        f"On: {result.get('hardware')}, torch {result.get('torch')}, loopt {result.get('loopt')}",
    ]
