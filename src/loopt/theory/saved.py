"""Built models on disk: config.json and weights.safetensors in a directory, in float64, exact to the bit."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from loopt.errors import InputError
from loopt.files import explain_os_errors, read_json, write_atomically
from loopt.model import LoopedTransformer, ModelConfig
from loopt.plan import LoopPlan

CONFIG, WEIGHTS = "config.json", "weights.safetensors"


def save(model: LoopedTransformer, directory: Path) -> None:
    config = {field.name: getattr(model.config, field.name) for field in fields(ModelConfig)}
    with explain_os_errors(f"save {directory}"):
        directory.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, directory / WEIGHTS)
        write_atomically(directory / CONFIG, json.dumps(config | {"plan": str(model.config.plan)}, indent=1) + "\n")


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
