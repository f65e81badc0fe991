"""How many threads to train with on a CPU. Threads that wait for each other are slower than one, and on a busy machine
they wait long: a core that another process has is a core that all of them wait for. The model's size alone decides, and
not what is busy: a run that resumes is to have as many as before, since sums in another order differ in their last
digits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from loopt.runs import TrainConfig
from loopt.training.session import Session

WORK_PER_THREAD = 250_000_000
"""Multiplications in the products of one layer, forward, that are taken to be worth a thread: so chosen that phop-cpu
and lm-cpu have one, measured on a busy machine alone. benchmarks/threads.py measures what the choice gives."""


@contextmanager
def training_threads(configs: Sequence[TrainConfig], session: Session, device: torch.device) -> Iterator[str]:
    """Has torch use as many threads as suit what is trained, and yields a sentence about it, empty where there is no
    choice. As many as before are used afterwards."""
    before = torch.get_num_threads()
    count, why = choose_threads(configs, session, device)
    torch.set_num_threads(count)
    try:
        yield f"training with {count} of {before} threads: {why}; --threads sets another number" if why else ""
    finally:
        torch.set_num_threads(before)


def choose_threads(configs: Sequence[TrainConfig], session: Session, device: torch.device) -> tuple[int, str]:
    """Returns how many threads to use and, where they are fewer than torch would take, why."""
    usual = torch.get_num_threads()
    if session.threads is not None:
        return session.threads, ""
    if device.type != "cpu" or "OMP_NUM_THREADS" in os.environ:
        return usual, ""
    worthwhile = max([1, *(layer_work(config) // WORK_PER_THREAD for config in configs)])
    chosen = min(usual, worthwhile)
    return chosen, "" if chosen == usual else "the model is small"


def layer_work(config: TrainConfig) -> int:
    """Returns how many multiplications the products of one layer take, forward, for a whole batch."""
    model = config.model
    tokens = config.batch_size * (model.max_len or config.source.max_len)
    width = model.width_of_head * model.n_heads
    matrices = 3 if model.feed_forward == "swiglu" else 2
    return tokens * model.d_model * (4 * width + matrices * model.d_ff)
