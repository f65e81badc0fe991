"""Built models on disk: config.json and weights.safetensors in a directory, in float64, exact to the bit."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from loopt.errors import InputError
from loopt.files import explain_os_errors, read_json, write_atomically
from loopt.model import LoopedTransformer, ModelConfig
from loopt.plan import LoopPlan
from loopt.runs import AdamWConfig, TrainConfig, TrainState, checkpoint, codec
from loopt.runs.checkpoint import WrittenFile
from loopt.tasks import Task

CONFIG, WEIGHTS = "config.json", "weights.safetensors"


def save(model: LoopedTransformer, directory: Path) -> None:
    """Writes the model; raises an InputError where the directory holds another one."""
    refuse_to_replace(model, directory)
    config = {field.name: getattr(model.config, field.name) for field in fields(ModelConfig)}
    with explain_os_errors(f"save {directory}"):
        directory.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, directory / WEIGHTS)
        write_atomically(directory / CONFIG, json.dumps(config | {"plan": str(model.config.plan)}, indent=1) + "\n")


def refuse_to_replace(model: LoopedTransformer, directory: Path) -> None:
    """Raises an InputError where the directory holds weights, of another model than this."""
    if not (directory / WEIGHTS).exists():
        return
    there = load(directory)
    ours, theirs = model.state_dict(), there.state_dict()
    same = ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    if there.config != model.config or not same:
        raise InputError(f"{directory} holds other weights; delete it, or save to another directory")


def config_of_run(model: LoopedTransformer, task: Task) -> TrainConfig:
    """Returns how the run of a built model is trained on, unless another config is asked for."""
    return TrainConfig(
        source=task,
        model=model.config,
        optim=AdamWConfig(lr=1e-4, warmup_steps=0),
        steps=200,
        batch_size=32,
        log_every=50,
        eval_every=100,
        eval_examples=512,
        test_examples=512,
    )


def save_as_run(model: LoopedTransformer, config: TrainConfig, directory: Path) -> None:
    """Writes the model, in float32, as a run at step 0: ``loopt eval``, ``loopt thoughts`` and ``loopt train`` take the
    directory. A run that is there already stays, since it may have been trained."""
    if directory.exists():
        return
    state = TrainState(0, codec.fingerprint(config), WrittenFile(0, hashlib.sha256().hexdigest()), None, 0.0)
    weights = {name: tensor.float() for name, tensor in model.state_dict().items()}
    with explain_os_errors(f"save {directory}"):
        (directory / "checkpoints").mkdir(parents=True)
        checkpoint.save(directory / "checkpoints", weights, {}, state)
        write_atomically(directory / CONFIG, json.dumps(codec.to_json(config), indent=1) + "\n")


def load(directory: Path) -> LoopedTransformer:
    """Returns a model that ``loopt prove --save`` wrote. It runs like any other:

    model = load(Path("weights/group-composition/S5-n64"))
    model(ids).argmax(-1), model.thoughts(ids)
    """
    sizes = read_json(directory / CONFIG, InputError)
    try:
        config = ModelConfig(**sizes | {"plan": LoopPlan.parse(sizes["plan"])})
        model = LoopedTransformer(config).double().eval()
        model.load_state_dict(load_file(directory / WEIGHTS))
    except InputError as error:
        raise InputError(f"{directory / CONFIG}: {error}") from None
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        wrong = " ".join(str(error).split())
        raise InputError(f"{directory} does not hold a model that loopt prove saved: {wrong}") from None
    return model
