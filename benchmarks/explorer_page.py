"""Prints how large the page of thoughts is for 256 letters and (1⊗6), and how long it takes to open and to step.

    python benchmarks/explorer_page.py     # needs chromium and Playwright

The model is not trained: sizes and times do not depend on what it says. A step is what its scripts and the layout take.
"""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright

from loopt.analysis.exploration import SURE, TOP, Exploration, Subject, draw_examples
from loopt.analysis.probes import fit_probes
from loopt.model import LoopedTransformer
from loopt.report.explorer import render_explorer
from loopt.tasks import PHop
from loopt.training import presets

PAGE = Path("/tmp/loopt-explorer-page.html")
FIRST_VIEW = """(function look() {
  if (!document.querySelector("#strip svg")) setTimeout(look, 1);
  else requestAnimationFrame(() => setTimeout(() => { window.firstView = performance.now(); }));
})()"""
STEP = (
    "(step) => { const t = performance.now(); go({ step }); document.body.offsetHeight; return performance.now() - t; }"
)


def main() -> None:
    torch.manual_seed(0)
    config = presets.phop().resolved()
    task, model = config.source, LoopedTransformer(config.model).eval()
    assert isinstance(task, PHop)
    began = time.perf_counter()
    probes = fit_probes(model, task, 12, examples=64)
    models = Exploration([Subject("(1⊗6)", "", model, probes=probes, loops=12)], task, task.codec(Path()))
    described = models.describe(draw_examples(task, 0, 3))
    facts = {"top": TOP, "sure": SURE, "command": "benchmark", "version": ""}
    PAGE.write_text(render_explorer("page", models.describe_models(), described, **facts), encoding="utf-8")  # type: ignore[arg-type]
    print(f"{PAGE.stat().st_size / 1e6:.2f} MB, made in {time.perf_counter() - began:.1f} s")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        viewed, opened, steps = [], [], []
        for _ in range(3):
            tab = browser.new_page(viewport={"width": 1200, "height": 900})
            tab.add_init_script(FIRST_VIEW)
            began = time.perf_counter()
            tab.goto(PAGE.as_uri())
            tab.wait_for_selector("body[data-ready=yes]")
            opened.append(time.perf_counter() - began)
            viewed.append(tab.evaluate("firstView") / 1000)
            steps += [tab.evaluate(STEP, step) for step in range(1, 13)]
            tab.close()
        browser.close()
    print(f"what opens it is painted after {statistics.median(viewed):.2f} s (longest {max(viewed):.2f})")
    print(f"all of it is there after {statistics.median(opened):.2f} s (longest {max(opened):.2f})")
    print(f"a step of the slider takes {statistics.median(steps):.0f} ms (longest {max(steps):.0f})")


if __name__ == "__main__":
    main()
