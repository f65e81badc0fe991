"""The drawings of problems: nothing hides an edge, and what a probe reads is said, also where it is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from browser import Tab, opened_browser
from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.analysis.exploration import Data, Exploration, Subject, draw_examples
from loopt.report.explorer import render_explorer
from loopt.tasks import IGSM, Addition, GroupComposition, PHop, Task

SKIPPING = """(() => {
  const nodes = example().problem.nodes, depth = Object.fromEntries(nodes.map((node) => [node.name, node.depth]));
  return nodes.flatMap((node) => node.uses.filter((used) => node.depth - depth[used] > 1)).length;
})()"""
HIDDEN = """(() => {
  const boxes = [...document.querySelectorAll("#problem .node rect")].map((rect) => rect.getBBox());
  const within = (p, b) => p.x > b.x && p.x < b.x + b.width && p.y > b.y && p.y < b.y + b.height;
  return [...document.querySelectorAll("#problem .edge")].filter((edge) => {
    const points = Array.from({ length: 400 }, (_, i) => edge.getPointAtLength((i / 399) * edge.getTotalLength()));
    return points.some((p) => boxes.some((b) => within(p, b)));
  }).length;
})()"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as one:
        yield one


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    one = Tab(browser)
    yield one
    one.close()


def described(task: Task, tokens: list[list[int]], start: int | None = None) -> tuple[list[Data], list[Data]]:
    """What a page says of an untrained model, whose probes are made to read everything rightly."""
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_heads": 2, "d_ff": 24, "vocab_size": task.vocab_size + 1, "max_len": task.max_len + 1}
    model = LoopedTransformer(ModelConfig(LoopPlan.parse("1x3"), **sizes)).eval()  # type: ignore[arg-type]
    models = Exploration([Subject("model", "", model, start)], task, task.codec(Path()))
    said, examples = models.describe_models(), models.describe([("one", row) for row in tokens])
    said[0]["probes"] = [
        {"quantity": name, "step": step, "accuracy": 1.0, "control": 0.3, "baseline": 0.3, "rows": 9, "sure": True}
        for name in examples[0]["quantities"]
        for step in range(4)
    ]
    for one in examples:
        right = {name: [label or 0 for label in labels] for name, labels in one["quantities"].items()}
        one["looks"][0]["probe"] = {name: [list(labels) for _ in range(4)] for name, labels in right.items()}
    return said, examples


def opened(tab: Tab, path: Path, said: list[Data], examples: list[Data], view: str = "") -> Any:
    page = path / "page.html"
    page.write_text(render_explorer("page", said, examples, top=3, sure=0.9, command="", version=""), encoding="utf-8")
    return tab.open(page.as_uri() + view)


def test_no_parameter_hides_an_edge_of_the_graph(tab: Tab, tmp_path: Path) -> None:
    task = IGSM()
    page = opened(tab, tmp_path, *described(task, [tokens for _, tokens in draw_examples(task, 0, 6)]))
    skipping = 0
    for which in range(6):
        page.evaluate(f"chooseExample({which})")
        skipping += page.evaluate(SKIPPING)
        assert page.evaluate(HIDDEN) == 0
        used = page.evaluate("example().problem.nodes.flatMap((n) => n.uses).length")
        assert page.locator("#problem .edge").count() == used
    assert skipping > 5


def test_the_carries_that_are_read_stand_in_the_sum(tab: Tab, tmp_path: Path) -> None:
    task = Addition(operands=(2,), digits=3, test_operands=(2,))
    said, examples = described(task, [task.encode("999+003=1002")])
    places = examples[0]["problem"]["places"]
    examples[0]["looks"][0]["probe"]["carry into it"][2][places[1]] = 0
    page = opened(tab, tmp_path, said, examples, "#step=1")
    row = page.locator("#problem tr", has_text="carry, read")
    assert row.locator("td").all_inner_texts() == ["1✓", "1✓", "1✓", "0✓"]
    page.evaluate("go({step: 2})")
    assert row.locator("td").all_inner_texts() == ["1✓", "0✗", "1✓", "0✓"]
    page.evaluate("model().probes.forEach((one) => { one.sure = false; })")
    page.evaluate("go({step: 1})")
    assert row.locator("td").all_inner_texts() == ["·"] * 4
    assert row.locator("td").first.get_attribute("title") == "reads 1, but this probe is often wrong"


def test_a_wrong_reading_is_said_in_the_tree_and_among_the_hops(tab: Tab, tmp_path: Path) -> None:
    group = GroupComposition(group="S3", n=4)
    said, examples = described(group, [group.encode("(1 2) e (1 2) e")])
    examples[0]["looks"][0]["probe"]["product of the last 2"][2][3] = group.encode("(1 2 3)")[0]
    page = opened(tab, tmp_path, said, examples, "#step=2")
    wrong = page.locator("#problem .node", has_text="reads (1 2 3) ✗")
    assert wrong.count() == 1
    assert "known" not in str(wrong.get_attribute("class")).split()
    assert wrong.locator("title").text_content() == "reads (1 2 3) ✗"
    page.evaluate("go({step: 1})")
    assert page.locator("#problem .node:not(.known)").count() == 0

    hops = PHop(p=(2,), n=8)
    said, examples = described(hops, [hops.encode("abcabcab")])
    examples[0]["looks"][0]["probe"]["hop 1"][2][7] = hops.encode("a")[0]
    page = opened(tab, tmp_path, said, examples)
    row = page.locator(".ladder tr").nth(2)
    assert row.locator("td").all_inner_texts() == ["○ c\nreads a ✗", "● a"]
    assert row.locator("td").first.get_attribute("title") == "reads a ✗"


def test_hops_are_told_in_ranges(tab: Tab, tmp_path: Path) -> None:
    task = PHop(p=(16,), n=40)
    page = opened(tab, tmp_path, *described(task, [draw_examples(task, 0, 1)[0][1]]))
    assert "a probe first reads hops 1 to 16 after loop 1." in page.locator("#story").inner_text()
    for hops, told in (([3], "hop 3"), ([1, 2], "hops 1 and 2"), ([1, 3, 4, 5, 7], "hops 1, 3 to 5 and 7")):
        assert page.evaluate(f"hopsInWords({hops})") == told


def test_attention_that_is_not_shown_is_said(tab: Tab, tmp_path: Path) -> None:
    task = PHop(p=(2,), n=8)
    for start, told in ((None, "many, spread thinly"), (5, "the start token")):
        said, examples = described(task, [task.encode("abcabcab")], start)
        page = opened(tab, tmp_path, said, examples)
        assert page.locator("#kept").inner_text() == ""
        page.evaluate("attention(0).weight.fill(0); attention(0).k = 3; render()")
        assert page.locator("#kept").inner_text() == "Of each row the strongest 3 are kept."
        assert page.locator("#matrices figcaption").first.inner_text().endswith(told)
        assert page.locator("#strip .looked").text_content() == told
