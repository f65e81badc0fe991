"""A text of a few thousand tokens, prepared once, and language models that learn it in a second."""

from __future__ import annotations

import atexit
import functools
import json
import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from loopt import LoopPlan, ModelConfig
from loopt.runs import AdamWConfig, TrainConfig
from loopt.runs.optimizers import with_optimizer
from loopt.text.order import sequence_at
from loopt.text.prepare import Settings, prepare
from loopt.text.source import Text
from loopt.text.token_data import TokenData
from loopt.text.tokenizer import train_tokenizer

WORDS = ["the", "a", "cat", "dog", "sees", "hears", "one", "red", "never", "always.", "Ünïcödé", "345\n"]

TEXT = TrainConfig(
    source=Text(),
    model=ModelConfig(LoopPlan.parse("2x2"), d_model=16, n_heads=2, d_ff=24, max_len=12, feed_forward="swiglu"),
    optim=AdamWConfig(lr=0.01, warmup_steps=3),
    steps=12,
    batch_size=4,
    log_every=2,
    eval_every=4,
    eval_examples=10,
    test_examples=25,
)


@functools.cache
def text_directory(seed: int = 0) -> Path:
    """Prepared text, in several shards; another seed gives other text with the same tokenizer."""
    folder = Path(tempfile.mkdtemp(prefix="tiny-text-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return prepared(folder, seed)


def prepared(folder: Path, seed: int = 0, count: int = 75, **changes: Any) -> Path:
    """Documents written into ``folder``, and prepared in ``folder/data``."""
    write_documents(folder / "text.jsonl", seed, count)
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(train_tokenizer(documents(seed=99), 300).text, encoding="utf-8")
    given: dict[str, Any] = {"validation": 0.2, "test": 0.2, "shard_bytes": 4000} | changes
    prepare(Settings((str(folder / "text.jsonl"),), str(tokenizer), **given), folder / "data", workers=1)
    return folder / "data"


def write_documents(path: Path, seed: int = 0, count: int = 75) -> None:
    lines = (json.dumps({"text": text}) + "\n" for text in documents(seed, count))
    path.write_text("".join(lines), encoding="utf-8")


def documents(seed: int, count: int = 75) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(5, 60))) for _ in range(count)]


def tiny_text(optimizer: str = "adamw", plan: str = "2x2", data: str | None = None, **changes: Any) -> TrainConfig:
    source = Text(str(text_directory()) if data is None else data)
    model = changes.pop("model", TEXT.model)
    optim = with_optimizer(TEXT.optim, optimizer)
    return replace(TEXT, source=source, model=replace(model, plan=LoopPlan.parse(plan)), optim=optim, **changes)


def rows_of_step(config: TrainConfig, step: int) -> torch.Tensor:
    """What a step must train on, whoever trains it: [batch_size, max_len + 1] tokens, cut from one long row."""
    assert isinstance(config.source, Text)
    data, length = TokenData.open(config.source.data), config.model.max_len
    tokens = [token for chunk in data.chunks("train") for token in chunk.tolist()]
    positions = range(step * config.batch_size, (step + 1) * config.batch_size)
    order = sequence_at(positions, (len(tokens) - 1) // length, data.fingerprint, config.seed)
    return torch.tensor([tokens[i * length : (i + 1) * length + 1] for i in order.tolist()])
