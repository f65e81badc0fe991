"""loopt similarity: what it prints, writes and draws are the cosines of the run's weights."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from loopt.cli import main
from loopt.plan import LoopPlan
from loopt.runs import Run
from loopt.training import train
from tiny_runs import CPU, TINY, layers_of


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("similarity") / "deep"
    train(replace(TINY, model=replace(TINY.model, plan=LoopPlan.parse("4x1")), steps=6), run, CPU)
    return run


def test_cosines_are_those_of_the_weights(deep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["similarity", str(deep), "--out", str(tmp_path), "--apart", "2"]) == 0
    found = json.loads((tmp_path / "similarity.json").read_text())
    assert list(found) == ["query", "key", "value", "output", "up", "down"]
    downs = [layer.feed_forward.down.weight.flatten() for layer in layers_of(Run.load(deep).load_model())]
    expected = [[torch.cosine_similarity(a, b, dim=0).item() for b in downs] for a in downs]
    torch.testing.assert_close(torch.tensor(found["down"]), torch.tensor(expected), rtol=1e-5, atol=1e-5)
    (row,) = re.findall(r"│ 2 │(.*)│\n", capsys.readouterr().out)
    shown = float(row.split("│")[-1])
    assert shown == pytest.approx((expected[0][2] + expected[1][3]) / 2, abs=6e-4)
    assert (tmp_path / "similarity.png").read_bytes()[:4] == b"\x89PNG"


def test_what_cannot_be_compared_is_told(deep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shallow = tmp_path / "shallow"
    train(replace(TINY, model=replace(TINY.model, plan=LoopPlan.parse("1x2")), steps=6), shallow, CPU)
    for arguments, message in (
        ([str(shallow)], "its model has one layer; there is nothing to compare it with"),
        ([str(deep), "--apart", "4"], "apart=4: allowed is 1 to 3, since the model has 4 distinct layers"),
        ([str(tmp_path / "nothing")], "no such file; a run's directory holds its config.json"),
    ):
        assert main(["similarity", *arguments]) == 2
        assert message in capsys.readouterr().err
