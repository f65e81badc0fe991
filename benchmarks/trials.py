"""What was tried beside the tables: the runs in results/trials, each with what it does otherwise than the table.

    python benchmarks/trials.py                  in the Markdown of docs/results.md
    loopt train --from results/trials/FILE       trains what one of them trained

A run is told by each setting that the table's config for the same model has otherwise, as "table's → its own". Left out
are the steps, which have a column, and how often and on how many examples the run was measured. The accuracy of a task
with several tests is that of each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from loopt.reproduce.addition import addition
from loopt.reproduce.experiment import Scale
from loopt.reproduce.igsm import igsm
from loopt.reproduce.phop import phop
from loopt.reproduce.table import solved_at
from loopt.runs import TrainConfig, codec
from loopt.tasks import IGSM, Addition, PHop

LEFT_OUT = ("steps", "eval_every", "test_examples")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the result files are")
    folder = parser.parse_args().results / "trials"
    trials = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    if not trials:
        sys.exit(f"{folder}: no result files; a clone has those of the project")
    tables = defaultdict(list)
    for trial in trials:
        config = codec.from_json(trial["config"])
        title, standard = recipe_of_the_table(config, trial["scale"])
        order = (str(config.model.plan), -trial["result"]["accuracy"])
        tables[title].append((order, line(trial, config, standard)))
    print("\n\n".join(markdown(title, [text for _, text in sorted(lines)]) for title, lines in sorted(tables.items())))


def recipe_of_the_table(config: TrainConfig, scale: Scale) -> tuple[str, TrainConfig]:
    """The table that a trial stands beside, at scale short or with the paper's recipe, and its config for the model."""
    plan, task = config.model.plan, config.source
    recipe = ", the paper's recipe" if scale == "paper" else ""
    if isinstance(task, PHop):
        (p,) = task.p
        return f"p-hop, {task.sampler}, p={p}{recipe}", phop(task.sampler).configure(plan, f"p{p}", scale)
    if isinstance(task, IGSM):
        return f"i-GSM, {task.law}{recipe}", igsm(task.law).configure(plan, "", scale)
    if isinstance(task, Addition):
        return f"addition{recipe}", addition.configure(plan, "", scale)
    raise ValueError(f"a trial of {task}: only the tables of addition, p-hop and i-GSM have any so far")


def line(trial: dict[str, Any], config: TrainConfig, standard: TrainConfig) -> str:
    result = trial["result"]
    changed = codec.differences(standard.resolved(), config)
    # Another optimizer has other settings; its name says enough of those that only one of the two has.
    told = [
        f"{name} {before} → {now}"
        for name, (before, now) in changed.items()
        if name not in LEFT_OUT and ((before is not None and now is not None) or not name.startswith("optim."))
    ]
    schedule = "the schedule alone" if "steps" in changed else "nothing"
    cells = (
        config.model.plan.typography,
        "; ".join(told) or schedule,
        f"{config.steps:,}",
        f"{result['step']:,}",
        f"{solved:,}" if (solved := solved_at(trial)) else "-",
        f"{result['seconds']:.0f}",
        " / ".join(f"{100 * accuracy:.1f}" for accuracy in result["accuracies"].values()),
    )
    return f"| {' | '.join(cells)} |"


def markdown(title: str, lines: Iterable[str]) -> str:
    head = "| model | otherwise than in the table | schedule | stopped at | to 99% | seconds | accuracy |"
    return "\n".join([f"**{title}**\n", head, "|---|---|--:|--:|--:|--:|--:|", *lines])


if __name__ == "__main__":
    main()
