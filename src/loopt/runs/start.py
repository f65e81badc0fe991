"""Starting from the weights of another run, with a new optimizer and a schedule of its own.

The weights are named by their SHA-256, which is part of the config: two runs that start from different weights are
different runs, wherever the weights lie. A run's first checkpoint, of step 0, has them; from then on it does not need
the other run.

A looped model (k⊗L) can start from one of kL layers, too: each of its layers gets the mean of those L that it stands
for. That is worth something where a regularizer has made them alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from loopt.errors import InputError, RunError
from loopt.files import parse_json
from loopt.model import LoopedTransformer
from loopt.plan import Block, LoopPlan
from loopt.runs import checkpoint
from loopt.runs.checkpoint import WEIGHTS, CheckpointError
from loopt.runs.config import StartConfig, TrainConfig
from loopt.runs.run import Run, read_config
from loopt.source import Codec


@dataclass(frozen=True)
class Start:
    """Where the first weights of a run are from."""

    run: Run
    step: int
    block: int | None
    """How many layers the blocks have whose mean is taken; None where the weights are taken as they are."""


def with_weights_named(config: TrainConfig, directory: Path) -> TrainConfig:
    """Returns the config of a run in ``directory`` with the SHA-256 of the weights that it starts from filled in: those
    it has begun with, or the best ones that the other run has now. Raises a RunError where these do not fit."""
    start, path = config.start, directory / "config.json"
    if not start.active:
        return config
    if path.exists():
        begun = read_config(path).start
        if not start.weights and begun.run and Path(begun.run).resolve() == Path(start.run).resolve():
            start = replace(start, weights=begun.weights)
        if start.weights:
            return replace(config, start=start)
    other, step = _find(start)
    _check_tokenizer(config, other)
    _check_sizes(config, other, step)
    return replace(config, start=replace(start, weights=_sha256(other, step)))


def codec_to_start_with(start: StartConfig, directory: Path) -> Codec | None:
    """Returns what turned text into tokens for the weights that a run in ``directory`` is to start from, or None where
    it does not start from others, or has begun. Raises a RunError where the weights are not there."""
    if not start.active or (directory / "config.json").exists():
        return None
    other, _ = _find(start)
    return other.codec


def load_start(config: TrainConfig, model: torch.nn.Module) -> Start:
    """Loads the weights that a run starts from into its model, which may be sharded; returns where they are from."""
    other, step = _find(config.start)
    weights = checkpoint.read_weights(other.checkpoints, step)
    block = looped_block(other.config.plan_of_checkpoint(step), config.plan_of_checkpoint(0))
    where = str(other.checkpoints / checkpoint.name_of(step))
    checkpoint.put_weights(model, mean_of_blocks(weights, block) if block else weights, where)
    return Start(other, step, block)


def looped_block(deep: LoopPlan, looped: LoopPlan) -> int | None:
    """Returns k where the plans are (kL⊗1) and (k⊗L), L of 2 or more, and None for any others."""
    if len(looped.blocks) != 1 or looped.blocks[0].loops == 1 or deep != LoopPlan((Block(looped.depth, 1),)):
        return None
    return looped.blocks[0].layers


def mean_of_blocks(weights: Mapping[str, Tensor], block: int) -> dict[str, Tensor]:
    """Returns the weights of a model that has one block of so many layers in place of several: each layer has the mean
    of those in its place."""
    places = {name: re.fullmatch(r"loop\.layers\.(\d+)\.(.+)", name) for name in weights}
    found: dict[str, list[Tensor]] = {}
    for name, place in places.items():
        mean = f"loop.layers.{int(place[1]) % block}.{place[2]}" if place else name
        found.setdefault(mean, []).append(weights[name])
    return {name: torch.stack(tensors).mean(0) if len(tensors) > 1 else tensors[0] for name, tensors in found.items()}


def _find(start: StartConfig) -> tuple[Run, int]:
    """Returns the other run, and its checkpoint with the weights that are named, or the best one where none are."""
    if not start.run:
        raise RunError(f"start.run: which run has the weights with SHA-256 {start.weights[:16]}…? Give its directory")
    try:
        other = Run.load(start.run)
        if not start.weights:
            return other, other.find("best").step
        for step in checkpoint.steps_in(other.checkpoints):
            try:
                found = _sha256(other, step)
            except CheckpointError:  # of a step that is damaged, or was deleted meanwhile
                continue
            if found == start.weights:
                return other, other.find(step).step
    except InputError as error:
        raise RunError(f"start.run={start.run}: {error}") from None
    raise RunError(
        f"start.run={start.run}: it does not have, or no longer has, the weights that the config names (SHA-256 "
        f"{start.weights[:16]}…); --start.run {start.run} with another --run starts from those that it has now"
    )


def _sha256(run: Run, step: int) -> str:
    return checkpoint.read_state(run.checkpoints / checkpoint.name_of(step)).files[WEIGHTS].sha256


def _check_tokenizer(config: TrainConfig, other: Run) -> None:
    """Raises a RunError where both train on text, by tokenizers that differ: a token would mean something else."""
    for name, text in config.source.run_files().items():
        theirs = other.directory / name
        if theirs.exists() and _tokens_by(theirs.read_text(encoding="utf-8")) != _tokens_by(text):
            raise RunError(
                f"start.run={config.start.run}: it has another tokenizer than this text. Prepare the text with it: "
                f"loopt data prepare --source TEXTS --tokenizer {theirs} --out DIRECTORY, then give --data DIRECTORY"
            )


def _tokens_by(tokenizer: str) -> dict[str, Any]:
    """Returns what of a tokenizer's file decides which tokens a text has; exporting a model adds other things."""
    data = parse_json(tokenizer, "tokenizer")
    return {name: data.get(name) for name in ("model", "normalizer", "pre_tokenizer", "added_tokens")}


def _check_sizes(config: TrainConfig, other: Run, step: int) -> None:
    """Raises a RunError unless the weights of the other run are those of this one's model, by name and size."""
    with torch.device("meta"):
        model = LoopedTransformer(replace(config.model, plan=config.plan_of_checkpoint(0)))
    wanted = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    path = other.checkpoints / checkpoint.name_of(step) / WEIGHTS
    with safe_open(path, framework="pt") as file:
        found = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)
    if block := looped_block(other.config.plan_of_checkpoint(step), config.plan_of_checkpoint(0)):
        shapes = {name: torch.empty(shape, device="meta") for name, shape in found.items()}
        found = {name: list(mean.shape) for name, mean in mean_of_blocks(shapes, block).items()}
    for name in sorted(wanted.keys() | found.keys()):
        ours, theirs = (sizes.get(name, "missing") for sizes in (wanted, found))
        if ours != theirs:
            raise CheckpointError(
                f"start.run={config.start.run}: {name} is {theirs} there, and {ours} in this run's model; allowed is "
                f"a run whose model has the same layers (its config: loopt train --from {other.directory}/config.json)"
            )
