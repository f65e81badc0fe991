"""Threads: as many as the model is worth, unless somebody says otherwise."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tiny_runs
from loopt import LoopedTransformer
from loopt.errors import ConfigError
from loopt.training import Callback, Session, train
from loopt.training.threads import choose_threads, layer_work
from loopt.training.trainer import Trainer

CPU = torch.device("cpu")
LARGE = replace(tiny_runs.TINY, batch_size=4096, model=replace(tiny_runs.TINY.model, d_model=256, n_heads=8, d_ff=1024))


@pytest.fixture(autouse=True)
def a_machine_of_eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)


def test_a_small_model_gets_one_thread_and_a_large_one_all() -> None:
    assert choose_threads([tiny_runs.TINY], Session(), CPU) == (1, "the model is small")
    assert choose_threads([LARGE], Session(), CPU) == (8, "")
    assert choose_threads([tiny_runs.TINY, LARGE], Session(), CPU) == (8, "")


def test_a_busy_machine_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that resumes is to have as many as before: sums in another order differ in their last digits."""
    monkeypatch.setattr(os, "getloadavg", lambda: (40.0, 0.0, 0.0))
    assert choose_threads([LARGE], Session(), CPU) == (8, "")


def test_who_says_how_many_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_threads([tiny_runs.TINY], Session(threads=3), CPU) == (3, "")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert choose_threads([tiny_runs.TINY], Session(), CPU) == (8, "")
    assert choose_threads([tiny_runs.TINY], Session(), torch.device("cuda")) == (8, "")
    with pytest.raises(ConfigError, match="threads=0: allowed is 1 to 1024"):
        Session(threads=0)


def test_the_work_of_a_layer_is_that_of_its_matrices() -> None:
    model = LoopedTransformer(replace(tiny_runs.TINY.model, vocab_size=5, max_len=8))
    weights = sum(one.numel() for one in tiny_runs.layers_of(model)[0].parameters() if one.dim() == 2)
    assert layer_work(tiny_runs.TINY) == weights * tiny_runs.TINY.batch_size * tiny_runs.TINY.source.max_len


def test_training_uses_them_and_puts_things_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    seen = set()

    class Watch(Callback):
        def stepped(self, trainer: Trainer) -> None:
            seen.add(torch.get_num_threads())

    before = torch.get_num_threads()
    short = replace(tiny_runs.TINY, steps=2, optim=replace(tiny_runs.TINY.optim, warmup_steps=1))
    train(short, tmp_path / "run", Session(device="cpu", progress=False, threads=2), callbacks=[Watch()])
    assert seen == {2}
    assert torch.get_num_threads() == before
