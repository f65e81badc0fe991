"""Runs Transformers' own tests of causal language models on ours, and writes what passes, is skipped and fails.

    git clone --depth 1 --branch v5.23.0 https://github.com/huggingface/transformers
    python acceptance/transformers_tests.py transformers --write docs/transformers-tests.md

What is tested is the installed release; the tests are from its source. Where no checkout of it can be had, give one
of another release, and behind it the unpacked source distribution of the installed one, which has the newer half:

    pip download --no-deps --no-binary :all: transformers==5.23.0 && tar xzf transformers-5.23.0.tar.gz
    python acceptance/transformers_tests.py transformers transformers-5.23.0 --write docs/transformers-tests.md

What their tests import has to be installed: pytest, pytest-xdist, parameterized, datasets, pillow, httpx. Nothing of
theirs is kept.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

import torch
import transformers

TITLE = """# Transformers' own tests

The tests that Transformers has for all causal language models, run on ours. This page is written, a part for each
installed release, by `python acceptance/transformers_tests.py SOURCE --write docs/transformers-tests.md`."""
TESTS = Path(__file__).with_name("looped_causal_lm.py")
HELPERS = "distributed_testing_utils.py"
NO_HELPERS = f"""
import pytest

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *_, **__: pytest.skip("Needs tests/{HELPERS}, which the source distribution does not have")
"""
"""Stands in for helpers of tests on several processes, which others import without using them."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("sources", type=Path, nargs="+", help="sources of Transformers, the later over the earlier")
    options.add_argument("--write", type=Path, help="write the installed release's part of this page, not print it")
    given = options.parse_args()
    if not (given.sources[0] / "tests" / "causal_lm_tester.py").is_file():
        sys.exit(f"{given.sources[0]}: no tests/causal_lm_tester.py in it; allowed is a checkout of Transformers 5")
    part = _part(_run(given.sources), [_version(source) for source in given.sources])
    given.write.write_text(_page(given.write, part)) if given.write else print(part)
    return int("| failed |" in part)


def _run(sources: list[Path]) -> list[tuple[str, str, str]]:
    """Runs the tests and returns name, outcome and reason of each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for source in sources:
            shutil.copytree(source / "tests", folder / "tests", dirs_exist_ok=True)
        for file in ("conftest.py", "pyproject.toml"):
            shutil.copy(sources[0] / file, folder)
        shutil.copytree(sources[0] / "utils", folder / "utils")
        (folder / "src").mkdir()
        (folder / "src" / "transformers").symlink_to(Path(transformers.__file__).parent)
        shutil.copy(TESTS, folder / "tests" / "test_looped_causal_lm.py")
        if not (folder / "tests" / HELPERS).is_file():
            (folder / "tests" / HELPERS).write_text(NO_HELPERS)
        command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", "--tb=short"]
        command += ["tests/test_looped_causal_lm.py", f"--junitxml={folder / 'report.xml'}"]
        subprocess.run(command, cwd=folder, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=False)
        return [_outcome(case) for case in ET.parse(folder / "report.xml").iter("testcase")]


def _outcome(case: ET.Element) -> tuple[str, str, str]:
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            reason = (found.get("message") or "").strip().partition("\n")[0]
            reason = re.sub(r"^\w+::\w+ is skipped: |for `[a-z-]+`.*", "", reason)  # names the test
            reason = re.sub(r"^`[a-z-]+` is not in", "Its task is not in", reason)
            return case.get("name", ""), "skipped" if kind == "skipped" else "failed", reason.strip()
    return case.get("name", ""), "passed", ""


def _version(source: Path) -> str:
    text = (source / "src" / "transformers" / "__init__.py").read_text()
    found = re.search(r'__version__ = "([^"]+)"', text)
    return found[1] if found else "unknown"


def _page(file: Path, part: str) -> str:
    """Returns the page with a new part for the installed release; the newest release comes first."""
    parts = {one.partition("\n")[0]: f"## {one.strip()}" for one in file.read_text().split("\n## ")[1:]}
    parts[part.partition("\n")[0].removeprefix("## ")] = part
    newest_first = sorted(parts, key=lambda title: [int(number) for number in re.findall(r"\d+", title)], reverse=True)
    return "\n\n".join([TITLE, *(parts[title] for title in newest_first)]) + "\n"


def _part(outcomes: list[tuple[str, str, str]], versions: list[str]) -> str:
    """Returns what the page says of the installed release."""
    outcomes = sorted(dict.fromkeys(outcomes))  # a test with parts is reported part by part
    counts = collections.Counter(outcome for _, outcome, _ in outcomes)
    told = ", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "skipped", "failed"))
    lines = [
        f"## Transformers {transformers.__version__}",
        "",
        f"{told}. Tests of {' and, over these, '.join(versions)}; torch {torch.__version__}, "
        f"{'a GPU' if torch.cuda.is_available() else 'no GPU'}.",
        "",
        "| outcome | reason | tests |",
        "|---|---|---|",
    ]
    by_reason: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for name, outcome, reason in outcomes:
        if outcome != "passed":
            by_reason[outcome, reason.replace("|", "\\|")].append(name.removeprefix("test_"))
    for (outcome, reason), names in sorted(by_reason.items()):
        lines.append(f"| {outcome} | {reason[:160]} | {', '.join(names)} |")
    passed = [name.removeprefix("test_") for name, outcome, _ in outcomes if outcome == "passed"]
    lines += ["", "Passed: " + ", ".join(passed) + "."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
