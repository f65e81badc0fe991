"""Published looped models: Ouro becomes one of ours, and of the others it is said what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import tokenizers
from safetensors.torch import save_file
from torch import Tensor

import loopt
from command_line import run as run_command
from loopt import InputError
from loopt.hf.import_run import load_looped

LOGITS = [
    [0.12898, 0.86528, 0.75656, -0.09102, -0.8497, -0.77858, 0.0529, 0.83272, 0.79931, -0.0147, -0.81435],
    [1.97425, 1.85701, -0.07377, -1.93251, -1.90398, -0.01604, 1.88756, 1.94779, 0.10581, -1.83949, -1.98837],
    [1.61329, 0.77591, -0.81922, -1.61431, -0.83287, 0.76194, 1.61265, 0.88845, -0.7034, -1.60831, -0.94257],
]
"""What is read out of the last token after each loop."""
GATE = [
    [1.78572, 1.68993, 1.18993, 2.21298],
    [0.9621, 2.64048, 1.05338, 1.49535],
    [-0.92639, 1.16121, 1.87961, 0.69685],
]
"""What the exit gate says about every token after each loop."""


def ouro_folder(folder: Path) -> Path:
    """A tiny Ouro: its config, and weights under its names, drawn by a formula."""
    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}
    more = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 16, "total_ut_steps": 3}
    described = {"model_type": "ouro", "rope_theta": 1000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
    (folder / "config.json").write_text(json.dumps(sizes | more | described))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (11, 8),
        "model.norm.weight": (8,),
        "model.early_exit_gate.weight": (1, 8),
        "model.early_exit_gate.bias": (1,),
        "lm_head.weight": (11, 8),
    }
    for layer in ("model.layers.0.", "model.layers.1."):
        shapes |= {f"{layer}self_attn.{one}_proj.weight": (8, 8) for one in "qkvo"}
        shapes |= {f"{layer}mlp.{one}_proj.weight": (12, 8) for one in ("up", "gate")}
        shapes[f"{layer}mlp.down_proj.weight"] = (8, 12)
        norms = ("input_layernorm", "input_layernorm_2", "post_attention_layernorm", "post_attention_layernorm_2")
        shapes |= {f"{layer}{norm}.weight": (8,) for norm in norms}
    weights: dict[str, Tensor] = {}
    for number, (name, shape) in enumerate(sorted(shapes.items())):
        values = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
        weights[name] = (torch.sin(values * 1.7 + number) * 0.5 + (len(shape) == 1)).float().view(shape)
    save_file(weights, folder / "model.safetensors")
    return folder


@torch.no_grad()
def test_ouro_says_after_every_loop_what_it_said(tmp_path: Path) -> None:
    """The numbers are frozen from our own code, on weights given by a formula; Ouro's code gives them to 4e-5."""
    model = load_looped(ouro_folder(tmp_path)).double()
    assert str(model.config.plan) == "2x3"
    ids = torch.tensor([[1, 5, 2, 9]])
    thoughts = model.thoughts(ids)
    assert [thought.loops for thought in thoughts] == [1, 2, 3]
    for thought, logits, gate in zip(thoughts, LOGITS, GATE, strict=True):
        for found in (model.readout(thought.state)[0, -1], model(ids, loops=thought.loops)[0, -1]):
            torch.testing.assert_close(found, torch.tensor(logits, dtype=torch.float64), rtol=0, atol=2e-5)
        found = model.exit_logit(thought.state)[0]
        torch.testing.assert_close(found, torch.tensor(gate, dtype=torch.float64), rtol=0, atol=2e-5)


@torch.no_grad()
def test_the_command_makes_a_run_of_it(tmp_path: Path) -> None:
    (tmp_path / "ouro").mkdir()
    folder = ouro_folder(tmp_path / "ouro")
    assert run_command("import", str(folder), str(tmp_path / "run")) == 0
    ids = torch.tensor([[1, 5, 2, 9]])
    assert torch.equal(loopt.load(tmp_path / "run")(ids), load_looped(folder)(ids))


def test_a_run_without_a_tokenizer_says_where_one_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ouro").mkdir()
    run = tmp_path / "run"
    assert run_command("import", str(ouro_folder(tmp_path / "ouro")), str(run)) == 0
    generate = ("generate", str(run), "--prompt", "cad", "--max-new-tokens", "2")
    for command in (generate, ("export", str(run), str(tmp_path / "out"))):
        assert run_command(*command) == 2
        told = capsys.readouterr().err
        assert (
            f"{run / 'tokenizer.json'}: no such file; copy the tokenizer.json that the model was trained with" in told
        )
        assert told.count("\n") == 1
    letters = tokenizers.models.WordLevel(
        {letter: number for number, letter in enumerate("abcdefghijk")}, unk_token="a"
    )
    tokenizer = tokenizers.Tokenizer(letters)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(run / "tokenizer.json"))
    assert run_command(*generate) == 0
    assert run_command("export", str(run), str(tmp_path / "out")) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act=gelu"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps"),
        ({"layer_types": ["sliding_attention"] * 2}, "layer_types"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_type=yarn"),
        ({"num_hidden_layers": 3}, "is missing"),
        ({"intermediate_size": 16}, r"allowed is \["),
    ],
)
def test_an_ouro_that_does_not_fit_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = ouro_folder(tmp_path) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=message):
        load_looped(tmp_path)


@pytest.mark.parametrize(
    ("described", "why"),
    [
        ({"model_type": "huginn_raven"}, "Huginn's layers norm the sum of a sublayer and its input"),
        ({"_class_name": "ParcaeConfig"}, "Parcae adds gated embeddings of the tokens"),
    ],
)
def test_of_others_it_is_said_what_does_not_fit(
    described: dict[str, str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert run_command("import", str(tmp_path), str(tmp_path / "run")) == 2
    told = capsys.readouterr().err
    assert f"{tmp_path}: cannot be imported: {why}" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "run").exists()
