"""Runs Transformers' own tests of causal language models on ours, and writes what passes, is skipped and fails.

    git clone --depth 1 --branch v5.17.0 https://github.com/huggingface/transformers
    python acceptance/transformers_tests.py transformers --write docs/transformers-tests.md

The tests are taken from a checkout of Transformers, since releases on PyPI do not have all of them; what is tested is
the installed release. What their tests import has to be installed: pytest, pytest-xdist, parameterized, datasets,
pillow, httpx. Nothing of theirs is kept.
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

import transformers

TESTS = Path(__file__).with_name("looped_causal_lm.py")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("checkout", type=Path, help="folder of a checkout of Transformers")
    options.add_argument("--write", type=Path, help="write the page here, in place of printing it")
    given = options.parse_args()
    if not (given.checkout / "tests" / "causal_lm_tester.py").is_file():
        sys.exit(f"{given.checkout}: no tests/causal_lm_tester.py in it; allowed is a checkout of Transformers 5")
    page = _page(_run(given.checkout), _version(given.checkout))
    given.write.write_text(page) if given.write else print(page)
    return int("| failed |" in page)


def _run(checkout: Path) -> list[tuple[str, str, str]]:
    """Runs the tests and returns name, outcome and reason of each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(checkout / "tests", folder / "tests")
        for file in ("conftest.py", "pyproject.toml"):
            shutil.copy(checkout / file, folder)
        shutil.copytree(checkout / "utils", folder / "utils")
        (folder / "src").mkdir()
        (folder / "src" / "transformers").symlink_to(Path(transformers.__file__).parent)
        shutil.copy(TESTS, folder / "tests" / "test_looped_causal_lm.py")
        command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", "--tb=short"]
        command += ["tests/test_looped_causal_lm.py", f"--junitxml={folder / 'report.xml'}"]
        subprocess.run(command, cwd=folder, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=False)
        return [_outcome(case) for case in ET.parse(folder / "report.xml").iter("testcase")]


def _outcome(case: ET.Element) -> tuple[str, str, str]:
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            reason = (found.get("message") or "").strip().partition("\n")[0]
            reason = re.sub(r"^\w+::\w+ is skipped: |`[a-z-]+` is not in|for `[a-z-]+`.*", "", reason)  # names the test
            return case.get("name", ""), "skipped" if kind == "skipped" else "failed", reason.strip()
    return case.get("name", ""), "passed", ""


def _version(checkout: Path) -> str:
    text = (checkout / "src" / "transformers" / "__init__.py").read_text()
    found = re.search(r'__version__ = "([^"]+)"', text)
    return found[1] if found else "unknown"


def _page(outcomes: list[tuple[str, str, str]], version: str) -> str:
    outcomes = sorted(dict.fromkeys(outcomes))  # a test with parts is reported part by part
    counts = collections.Counter(outcome for _, outcome, _ in outcomes)
    told = ", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "skipped", "failed"))
    lines = [
        "# Transformers' own tests",
        "",
        f"{told}. Tests of Transformers {version}, run on the installed {transformers.__version__} with",
        "`python acceptance/transformers_tests.py CHECKOUT --write docs/transformers-tests.md`, which wrote this page.",
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
    lines += ["", "Passed: " + ", ".join(passed) + ".", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
