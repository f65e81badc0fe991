"""The model that ``loopt eval`` measures on the suite: a run's, with any number of loops, or a Hugging Face model."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from loopt.commands.parsing import checkpoint_named
from loopt.devices import DeviceName, pick_device
from loopt.errors import InputError
from loopt.evaluation.hugging_face import HuggingFaceModel
from loopt.evaluation.looped import LoopedModel
from loopt.evaluation.measure import Measured
from loopt.plan import LoopPlan
from loopt.runs import Run
from loopt.runs.checkpoint import WEIGHTS, name_of, read_state


def check_choice(run: Path | None, hf: str | None, loops: Sequence[int]) -> None:
    """Raises an InputError unless one model is named, before any other work starts."""
    if (run is None) == (hf is None):
        raise InputError("run: which model? Allowed is one of RUN, the directory of a run, and --hf NAME_OR_DIR")
    if run is not None:
        plan = Run.load(run).config.model.plan
        for count in loops:
            plan.with_loops(count)
    elif loops:
        raise InputError(f"loops={loops[0]}: allowed is none with --hf, whose models do not loop")


def open_models(
    run: Path | None, hf: str | None, loops: Sequence[int], checkpoint: str, device: DeviceName, trust_remote_code: bool
) -> Iterator[tuple[str, Measured]]:
    """Yields the model of a run with each number of loops, or a Hugging Face model, under a name that fits a folder."""
    if hf is not None:
        yield "model", _hugging_face(hf, device, trust_remote_code)
    if run is not None:
        yield from _looped(run, loops, checkpoint, device)


def _looped(
    directory: Path, loops: Sequence[int], checkpoint: str, device: DeviceName
) -> Iterator[tuple[str, Measured]]:
    run = Run.load(directory)
    step = run.find(checkpoint_named(checkpoint)).step
    trained = run.config.plan_of_checkpoint(step)
    plans: dict[int | None, LoopPlan] = {count: trained.with_loops(count) for count in loops} or {None: trained}
    place = pick_device(device)
    model = run.load_model(step).to(place)
    weights = read_state(run.checkpoints / name_of(step)).files[WEIGHTS].sha256
    for count, plan in plans.items():
        named = f"step-{step}" if plan.loopable is None else f"step-{step}-loops-{plan.blocks[plan.loopable].loops}"
        identity = {"run": run.fingerprint, "step": step, "weights": weights, "plan": str(plan), "device": place.type}
        yield named, Measured(LoopedModel(model, run.codec, count), identity)


def _hugging_face(name: str, device: DeviceName, trust_remote_code: bool) -> Measured:
    place = pick_device(device)
    importlib.import_module("loopt.hf")  # models that loopt exported load without the code that they carry
    model = HuggingFaceModel(name, place, trust_remote_code=trust_remote_code)
    identity = {"hf": name, "revision": getattr(model.model.config, "_commit_hash", None), "device": place.type}
    if Path(name).is_dir():  # where files may have been replaced
        files = sorted(path for path in Path(name).iterdir() if path.is_file())
        identity["revision"] = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    return Measured(model, identity)


def results_folder(run: Path | None, hf: str | None) -> Path:
    """Returns where results go unless somebody says otherwise."""
    return run / "eval" if run is not None else Path("runs") / "hf" / str(hf).strip("/").replace("/", "--") / "eval"
