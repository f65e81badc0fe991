"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil

import pytest

import loopt

RUNS_THE_PROGRAM = {"loopt.__main__"}
KERNELS = ("adafactor", "attention", "choose", "clip", "decode", "decode_attention", "rotary")
NEEDS_TRITON = {f"loopt.kernels.{name}" for name in KERNELS}  # in CUDA builds of torch only
LEFT_OUT = RUNS_THE_PROGRAM if importlib.util.find_spec("triton") else RUNS_THE_PROGRAM | NEEDS_TRITON
MODULES = [m.name for m in pkgutil.walk_packages(loopt.__path__, "loopt.") if m.name not in LEFT_OUT]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    with_examples = {name for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples}
    assert {"loopt.plan", "loopt.model", "loopt.tasks.phop", "loopt.report.drawing"} <= with_examples
