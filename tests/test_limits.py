"""What no machine can do is refused at once, with what it would take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import is_refusal, run
from loopt import InputError, LoopedTransformer, LoopPlan, ModelConfig, limits
from loopt.limits import LARGEST, machine_memory, require_affordable
from loopt.model import empty_model
from loopt.tasks import PHop, names
from loopt.tasks.audit import audit

SMALL = ModelConfig(LoopPlan.parse("1x1"), d_model=8, n_heads=2, d_ff=8, vocab_size=3, max_len=4)
HUGE = 10**12
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # no message is wrapped


def test_the_machine_has_some_memory_and_takes_no_more_than_that() -> None:
    memory = machine_memory()
    assert memory is not None
    assert memory > 10**8
    require_affordable("all of it", memory=memory)
    with pytest.raises(InputError, match=r"more would take about [\d.,]+ GB of memory; this machine has [\d.,]+ GB"):
        require_affordable("more", memory=memory + 1)


@pytest.mark.parametrize("field", ["d_model", "n_heads", "d_ff", "vocab_size", "max_len", "head_dim"])
def test_a_model_s_sizes_have_a_limit(field: str) -> None:
    sizes: dict[str, Any] = {field: LARGEST, "head_dim": LARGEST if field == "head_dim" else 2}
    replace(SMALL, **sizes)
    sizes[field] = HUGE
    with pytest.raises(InputError, match=rf"model.{field}={HUGE}: allowed is 1 to {LARGEST}"):
        replace(SMALL, **sizes)


def test_a_model_is_sized_anywhere_but_built_where_there_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(SMALL, d_model=2**20, d_ff=2**20)
    assert config.parameters() > 2**40
    for make in (LoopedTransformer, empty_model):
        with pytest.raises(InputError, match=r"a model of [0-9,]+ parameters would take about [0-9,.]+ GB of memory"):
            make(config)
    with torch.device("meta"):
        assert sum(weights.numel() for weights in LoopedTransformer(config).parameters()) == config.parameters()
    monkeypatch.setattr(limits, "machine_memory", SMALL.memory)
    LoopedTransformer(SMALL)
    with pytest.raises(InputError, match="a model of"):
        LoopedTransformer(replace(SMALL, max_len=5))


def test_a_batch_of_examples_and_an_audit_have_to_fit() -> None:
    with pytest.raises(InputError, match="1,000,000,000,000 examples of 8 tokens would take about"):
        PHop(p=(1,), n=8).sample(range(HUGE), 0, "train")
    with pytest.raises(InputError, match="an audit of 1,000,000,000 examples of 8 tokens would take about"):
        audit(PHop(p=(1,), n=8), LARGEST)


@pytest.mark.parametrize("value", [LARGEST, HUGE, 2**63 - 1, 2**63, "7" * 5000])
@pytest.mark.parametrize(
    "command",
    [
        *("tasks show phop --n", "tasks show addition --operands", "tasks show addition --digits"),
        *("tasks show group --n", "tasks show assignment --shots", "tasks show assignment --depth"),
        *("tasks show igsm --edges", "tasks show igsm --operations", "tasks show igsm --modulus"),
        "tasks show igsm --law even --statements",
        *(f"tasks audit {name} --examples" for name in names()),
        *("prove group-composition --n", "prove phop --n", "prove phop --p", "prove phop --inputs", "prove cot --bits"),
        *("train phop-cpu --model.d-model", "train phop-cpu --model.d-ff", "train phop-cpu --model.max-len"),
        *("train phop-cpu --model.vocab-size", "train phop-cpu --batch-size", "train phop-cpu --n"),
        "reproduce phop --seeds",
    ],
)
def test_what_costs_too_much_is_refused(command: str, value: object, capsys: Captured, tmp_path: Path) -> None:
    assert run(*command.split(), str(value)) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert is_refusal(shown.err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["steps", "eval-examples", "test-examples", "eval-every", "log-every"])
def test_a_training_run_has_limits(field: str, capsys: Captured, tmp_path: Path) -> None:
    assert run("train", "phop-cpu", f"--{field}", str(HUGE)) == 2
    assert capsys.readouterr().err == f"loopt: {field.replace('-', '_')}={HUGE}: allowed is 1 to {LARGEST}\n"
    assert list(tmp_path.iterdir()) == []


def test_the_paper_s_largest_model_is_sized_on_any_machine(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(limits, "machine_memory", lambda: 2**30)
    sizes = ("--d-model", "2048", "--n-heads", "32", "--d-ff", "5120", "--vocab-size", "50304", "--max-len", "1280")
    assert run("plan", "24x1", *sizes) == 0
    assert "1.1" in capsys.readouterr().out
    assert run("train", "lm-1b", "--help") == 0
