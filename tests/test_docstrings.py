"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import loopt

MODULES = [module.name for module in pkgutil.walk_packages(loopt.__path__, "loopt.") if module.name != "loopt.__main__"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    with_examples = {name for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples}
    assert {"loopt.plan", "loopt.model", "loopt.tasks.phop", "loopt.report.drawing"} <= with_examples
