"""The models that come with loopt are small, and are what their files say."""

from __future__ import annotations

import pytest

from loopt.runs.run import read_config
from loopt.scoring import exact_match
from loopt.shipped import HERE, PLANS, load_shipped
from loopt.shipped.make import config_of


@pytest.mark.parametrize("plan", PLANS)
def test_a_model_is_what_its_files_say(plan: str) -> None:
    assert sum(file.stat().st_size for file in (HERE / plan).iterdir()) < 1_000_000
    assert read_config(HERE / plan / "config.json") == config_of(plan).resolved()
    shipped = load_shipped(plan)
    assert str(shipped.model.config.plan) == plan
    measured = exact_match(shipped.model, shipped.task, "test", 512).accuracy
    assert measured == pytest.approx(shipped.result["accuracy"], abs=0.06)
