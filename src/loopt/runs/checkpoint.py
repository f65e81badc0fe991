"""Checkpoints: complete or absent, checked before they are used, and without pickle.

``checkpoints/step-N/`` holds weights.safetensors, optimizer.safetensors and state.json, which names the size and the
SHA-256 of the other two and a SHA-256 of itself. It is written under a temporary name, flushed to the disk and renamed.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from loopt.errors import InputError, RunError
from loopt.files import check_signature, explain_os_errors, read_json, signed, sync
from loopt.runs import codec

FORMAT = 2
WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
KEEP_MARKER = "kept"
"""An empty file in a checkpoint that stays for good."""
TEMPORARY = ".tmp-"


class CheckpointError(RunError):
    """A checkpoint that is damaged or belongs to another run."""


@dataclass(frozen=True)
class Best:
    """The best evaluation of a run so far."""

    step: int
    score: float
    """The higher, the better: the accuracy of a task, minus the loss of a language model."""
    shown: str
    """The same, as a person wants to see it."""


@dataclass(frozen=True)
class WrittenFile:
    """What a file was when it was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class TrainState:
    """What a run has to remember besides tensors."""

    step: int
    """Updates done."""
    config: str
    """Fingerprint of the run's config."""
    metrics: WrittenFile
    """What metrics.jsonl was; more is written to it later."""
    best: Best | None
    """The best evaluation so far."""
    seconds: float
    """Time spent training so far, over all sessions."""


@dataclass(frozen=True)
class StateFile(TrainState):
    """What state.json holds: the state, and what the files beside it were."""

    format: int
    files: dict[str, WrittenFile]


def name_of(step: int) -> str:
    return f"step-{step}"


def steps_in(directory: Path) -> list[int]:
    """Returns the steps of all checkpoints, whether intact or not, oldest first."""
    if not directory.is_dir():
        return []
    matches = (re.fullmatch(r"step-(0|[1-9][0-9]*)", entry.name) for entry in directory.iterdir())
    return sorted(int(match.group(1)) for match in matches if match)


def is_kept(directory: Path, step: int) -> bool:
    return (directory / name_of(step) / KEEP_MARKER).exists()


def save(
    directory: Path, weights: dict[str, Tensor], optimizer: dict[str, Tensor], state: TrainState, kept: bool = False
) -> None:
    """Writes ``directory/step-N``. When that fails, what was there before is untouched."""
    existing = steps_in(directory)
    intact = f"; the checkpoint of step {existing[-1]} is intact" if existing else ""
    temporary, final = directory / f"{TEMPORARY}{name_of(state.step)}", directory / name_of(state.step)
    with explain_os_errors(f"save the checkpoint {final}", afterwards=intact):
        try:
            temporary.mkdir()  # not the directory itself: where that is gone, so is the run
            files = {}
            for name, tensors in ((WEIGHTS, weights), (OPTIMIZER, optimizer)):
                save_file(
                    {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, temporary / name
                )
                files[name] = WrittenFile((temporary / name).stat().st_size, _sha256(temporary / name))
            data = asdict(StateFile(**vars(state), format=FORMAT, files=files))
            (temporary / STATE).write_text(json.dumps(signed(data), indent=1))
            for name in (WEIGHTS, OPTIMIZER, STATE):
                sync(temporary / name)
            if kept:
                (temporary / KEEP_MARKER).touch()
            sync(temporary)
            temporary.rename(final)
            sync(directory)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def remove(directory: Path, step: int) -> None:
    """Deletes a checkpoint; it is renamed first, so that a half-deleted one is never taken for one."""
    doomed = directory / f"{TEMPORARY}old-{name_of(step)}"
    (directory / name_of(step)).rename(doomed)
    shutil.rmtree(doomed)


def remove_leftovers(directory: Path) -> None:
    """Deletes what a killed process left half written or half deleted."""
    for leftover in directory.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def load_state(directory: Path, step: int, config: str) -> TrainState:
    """Checks all of a checkpoint and returns its state; a CheckpointError says what is wrong with it."""
    path = directory / name_of(step)
    state = read_state(path)
    for name in (WEIGHTS, OPTIMIZER):
        _check_file(path / name, state.files[name])
    if state.step != step:
        raise CheckpointError(f"{path}: holds step {state.step}")
    if state.config != config:
        raise CheckpointError(f"{path}: belongs to another config ({state.config}, this run's is {config})")
    return state


def read_state(path: Path) -> StateFile:
    """Reads a checkpoint's state.json; the files that it tells of are not read."""
    file = path / STATE
    if not file.is_file():
        raise CheckpointError(f"{path}: {STATE} is missing")
    try:
        data = read_json(file)
        found = data.get("format") if isinstance(data, dict) else None
        if found != FORMAT:
            shown = codec.shown(found)
            raise CheckpointError(f"{file}: written in format {shown}; this version of loopt reads format {FORMAT}")
        state: StateFile = codec.decode(StateFile, check_signature(data, file), str(file))
    except InputError as error:
        raise CheckpointError(str(error)) from None
    if state.files.keys() != {WEIGHTS, OPTIMIZER}:
        raise CheckpointError(f"{file}: files={list(state.files)}: allowed are {WEIGHTS} and {OPTIMIZER}")
    return state


def load_weights(directory: Path, step: int, model: torch.nn.Module) -> None:
    """Loads a checkpoint's weights into ``model``, which must have exactly these."""
    put_weights(model, read_weights(directory, step), str(directory / name_of(step) / WEIGHTS))


def read_weights(directory: Path, step: int) -> dict[str, Tensor]:
    return _load(directory / name_of(step) / WEIGHTS)


@torch.no_grad()
def put_weights(model: torch.nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copies full tensors into a model that may be sharded; errors name ``where`` they come from."""
    expected = model.state_dict()
    for name in sorted(expected.keys() | tensors.keys()):
        found, wanted = _describe(tensors.get(name)), _describe(expected.get(name))
        if found != wanted:
            raise CheckpointError(f"{where}: {name} is {found}, the model's is {wanted}")
    for name, weight in expected.items():
        tensor = tensors[name].to(weight.device)
        if isinstance(weight, DTensor):
            tensor = distribute_tensor(tensor, weight.device_mesh, weight.placements)
        weight.copy_(tensor)


def load_optimizer(directory: Path, step: int) -> dict[str, Tensor]:
    return _load(directory / name_of(step) / OPTIMIZER)


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from None


def _check_file(path: Path, expected: WrittenFile) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path.parent}: {path.name} is missing")
    size = path.stat().st_size
    if size != expected.bytes:
        raise CheckpointError(f"{path.parent}: {path.name} has {size} bytes where {expected.bytes} were written")
    if _sha256(path) != expected.sha256:
        raise CheckpointError(f"{path.parent}: {path.name} has changed since it was written (SHA-256 differs)")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _describe(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
