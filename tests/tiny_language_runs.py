"""A language model's run of a second, with a context that prompts fit into."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from loopt.training import Session, train
from tiny_text_runs import TEXT, tiny_text


@functools.cache
def language_run() -> Path:
    """The directory of a run, trained once for all tests of a process; tests write into its ``eval`` alone."""
    folder = Path(tempfile.mkdtemp(prefix="tiny-language-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    config = tiny_text(model=replace(TEXT.model, max_len=96), steps=4, test_examples=2, eval_examples=2)
    train(config, folder / "run", Session(device="cpu", progress=False))
    return folder / "run"
