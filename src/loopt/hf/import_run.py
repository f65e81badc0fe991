"""A saved Transformers folder as a run, with which every command of loopt works. Its code is never run."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from loopt.errors import InputError
from loopt.files import explain_os_errors, read_json, write_atomically
from loopt.hf.configuration_looped import LoopedConfig
from loopt.hf.convert import to_loopt
from loopt.hf.export import RUN_FILE
from loopt.hf.modeling_looped import LoopedForCausalLM
from loopt.hf.published import DO_NOT_FIT, PUBLISHED, kind_of, load_published
from loopt.hf.tokenizers import FILE, end_of_document
from loopt.model import LoopedTransformer
from loopt.runs import Run, TrainConfig, TrainState, checkpoint, codec
from loopt.runs.checkpoint import WrittenFile
from loopt.text.source import Text


def import_folder(folder: Path, directory: Path) -> Run:
    """Writes the model of a saved folder into a new run directory, and returns the run: one that loopt exported, or a
    published looped model whose weights fit ours."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{directory}: exists already; allowed is a new directory, or an empty one")
    model = load_looped(folder)
    config, step = _about(folder, model)
    state = TrainState(step, codec.fingerprint(config), WrittenFile(0, hashlib.sha256().hexdigest()), None, 0.0)
    with explain_os_errors(f"write {directory}"):
        (directory / "checkpoints").mkdir(parents=True)
        if isinstance(config.source, Text) and (folder / FILE).is_file():
            shutil.copyfile(folder / FILE, directory / FILE)
        checkpoint.save(directory / "checkpoints", model.state_dict(), {}, state)
        write_atomically(directory / "config.json", json.dumps(codec.to_json(config), indent=1) + "\n")
    return Run.load(directory)


@torch.no_grad()
def load_looped(folder: Path) -> LoopedTransformer:
    """Returns the model of a saved folder as ``LoopedTransformer``."""
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder}: no config.json in it; allowed is a folder that Transformers saved")
    described = read_json(folder / "config.json", InputError)
    kind = kind_of(described)
    if kind in DO_NOT_FIT:
        raise InputError(f"{folder}: cannot be imported: {DO_NOT_FIT[kind]}")
    known = (LoopedConfig.model_type, *PUBLISHED)
    if kind not in known:
        raise InputError(f"{folder}: model_type={codec.shown(kind)}: allowed is {' | '.join(known)}")
    try:
        if kind == LoopedConfig.model_type:
            return to_loopt(LoopedForCausalLM.from_pretrained(folder, dtype=torch.float32))
        return load_published(folder, described)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:  # damaged, incomplete
        if isinstance(error, InputError):
            raise
        first = str(error).strip().partition("\n")[0]
        raise InputError(f"{folder}: cannot be loaded: {first[:300]}") from None


def _about(folder: Path, model: LoopedTransformer) -> tuple[TrainConfig, int]:
    """Returns the config of the run that trained the model, and the step; where the folder does not tell, one of text
    that is elsewhere."""
    if not (folder / RUN_FILE).is_file():
        return TrainConfig(source=Text(end_of_document=end_of_document(folder)), model=model.config), 0
    about: Any = read_json(folder / RUN_FILE, InputError)
    try:
        config, step = codec.from_json(about["config"]), codec.decode(int, about["step"], "step")
    except (KeyError, TypeError):
        raise InputError(f"{folder / RUN_FILE}: allowed is an object with config and step") from None
    trained = config.plan_of_checkpoint(step)
    if (config.model, trained) != (model.config, model.config.plan) and not config.stacking.active:
        raise InputError(f"{folder}: {RUN_FILE} tells of another model than config.json; delete it to import this one")
    return config, step
