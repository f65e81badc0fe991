"""docs/evaluation.md shows the prompts, tasks and data sets that there are."""

from __future__ import annotations

import re
from pathlib import Path

from loopt.evaluation.catalogue import GROUP_TITLES, TASKS
from loopt.evaluation.data_sets import DATA_SETS
from loopt.evaluation.metrics import METRICS
from loopt.evaluation.mini_sets import mini_data_dir
from loopt.evaluation.rendering import render

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading."""
    section = PAGE.partition(f"\n## {heading}\n\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in section.splitlines()][2:]


def test_every_prompt_is_shown_as_it_is() -> None:
    shown = dict(re.findall(r"^`(\w+)`\n\n```text\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL))
    assert list(shown) == list(TASKS)
    for name, task in TASKS.items():
        [request] = render(task, mini_data_dir(), 1)
        assert shown[name] == "".join(request.shots[-1:]) + f"{request.question} {request.golds[0]}"


def test_the_tasks_are_those_of_the_catalogue() -> None:
    assert rows("Tasks") == [
        [
            f"`{task.name}`",
            GROUP_TITLES[task.group],
            task.title,
            ", ".join(METRICS[task.metric]),
            f"{task.shots}, {'the paper' if task.paper_shots else 'our choice'}",
            str(task.max_new_tokens),
        ]
        for task in TASKS.values()
    ]


def test_every_data_set_has_its_license_and_source() -> None:
    found = rows("Data")
    assert [row[:4] for row in found] == [
        [f"`{data.folder}`", data.title, data.license, data.origin] for data in DATA_SETS
    ]
    assert all(f"`{data.hub.dataset}`" in row[4] for data, row in zip(DATA_SETS, found, strict=True))
