"""A run as a folder that Transformers loads, on any machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import transformers

from loopt.errors import InputError
from loopt.files import explain_os_errors, temporary_of
from loopt.hf.card import model_card
from loopt.hf.convert import to_transformers
from loopt.hf.modeling_looped import LoopedForCausalLM
from loopt.hf.tokenizers import tokenizer_of
from loopt.runs import Run, codec

RUN_FILE = "loopt_run.json"
"""What of the run the weights do not tell: its config, and the step of the checkpoint."""


def export_run(
    run: Run, folder: Path, checkpoint: Literal["best", "last"] | int = "best", loops: int | None = None
) -> LoopedForCausalLM:
    """Writes a run's model, tokenizer, code and card into a new folder, and returns the model. The folder is there
    complete or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: exists already; allowed is a new folder, or an empty one")
    step = run.find(checkpoint).step
    native = run.load_model(step)
    tokenizer = tokenizer_of(run, native.config.max_len)
    end = None if tokenizer is None else tokenizer.eos_token_id
    model = to_transformers(native, bos_token_id=end, eos_token_id=end, pad_token_id=end)
    if loops is not None:
        model.set_loops(loops)
    model.generation_config = transformers.GenerationConfig(
        do_sample=False, bos_token_id=end, eos_token_id=end, pad_token_id=end
    )
    temporary = temporary_of(folder)
    with explain_os_errors(f"write {folder}"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            model.save_pretrained(temporary)
            if tokenizer is not None:
                tokenizer.save_pretrained(temporary)
            (temporary / RUN_FILE).write_text(json.dumps(_about(run, step), indent=1) + "\n")
            (temporary / "README.md").write_text(model_card(run, step, model, folder.name), encoding="utf-8")
            if folder.exists():
                folder.rmdir()
            temporary.rename(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return model


def _about(run: Run, step: int) -> dict[str, Any]:
    return {"config": codec.to_json(codec.without_places(run.config)), "step": step}
