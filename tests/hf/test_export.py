"""A run becomes a folder that Transformers loads without loopt, and the folder a run again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from torch import Tensor

import loopt
import loopt.hf
from command_line import run as run_command
from loopt import InputError
from loopt.hf import load_decoder
from loopt.hf.carried_code import AUTO_MAP, CARRIED
from loopt.hf.convert import to_transformers
from loopt.hf.export import export_run
from loopt.hf.import_run import load_looped
from loopt.runs import Run, StartConfig
from loopt.training import Session, train
from tiny_runs import CPU, TINY
from tiny_text_runs import TEXT, text_directory

WITHOUT_LOOPT = """
import json, sys
sys.modules["loopt"] = None  # an import of it fails
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
inputs = tokenizer(["the cat", "a red dog sees"], return_tensors="pt", padding=True)
written = model.generate(**inputs, max_new_tokens=4)[:, -4:].tolist()
model.save_pretrained(sys.argv[2])
again = AutoModelForCausalLM.from_pretrained(sys.argv[2], trust_remote_code=True)
same = torch.equal(again(**inputs).logits, model(**inputs).logits)
ids = torch.tensor([[1, 2, 3, 4]])
print(json.dumps([written, same, model(ids).logits[0, -1].tolist()]))
"""


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("text") / "run"
    config = replace(TEXT, source=replace(TEXT.source, data=str(text_directory())), steps=4, eval_every=4)  # type: ignore[type-var]
    train(config, directory, Session(device="cpu", progress=False))
    return Run.load(directory)


@pytest.fixture(scope="module")
def exported(text_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    assert run_command("export", str(text_run.directory), str(folder)) == 0
    return folder


def test_it_loads_where_loopt_is_not_installed(text_run: Run, exported: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-c", WITHOUT_LOOPT, str(exported), str(tmp_path / "again")]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    written, same, logits = json.loads(done.stdout.splitlines()[-1])
    ours = loopt.load(text_run.directory)
    expected = loopt.generate(ours, ["the cat", "a red dog sees"], max_new_tokens=4)
    for row, one in zip(written, expected, strict=True):
        assert row[: len(one.tokens)] == list(one.tokens)
    assert same
    torch.testing.assert_close(torch.tensor(logits), ours(torch.tensor([[1, 2, 3, 4]]))[0, -1], rtol=0, atol=1e-5)


def test_code_in_a_folder_is_not_run_unasked(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ran = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(exported, folder)
    for file in folder.glob("*.py"):
        file.write_text(f"open({str(ran)!r}, 'w').close()\n" + file.read_text())
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)  # loopt.hf is imported: its own class
    assert type(model) is loopt.hf.LoopedForCausalLM
    assert type(load_decoder(str(folder))) is loopt.hf.LoopedForCausalLM
    assert run_command("import", str(folder), str(tmp_path / "back")) == 0
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | {"model_type": "something-else"}))
    assert run_command("analyze", "similarity", "--hf", str(folder), "--out", str(tmp_path / "out")) == 2
    assert "contains custom code" in capsys.readouterr().err
    assert run_command("import", str(folder), str(tmp_path / "again")) == 2
    assert not ran.exists()


def test_what_is_saved_to_be_pushed_has_the_code(tmp_path: Path) -> None:
    config = loopt.hf.LoopedConfig(plan="1x2", d_model=8, n_heads=1, d_ff=8, vocab_size=5, max_len=8)
    loopt.hf.LoopedForCausalLM(config).save_pretrained(tmp_path)
    carried = {Path(name).name for name in CARRIED}
    assert {file.name for file in tmp_path.iterdir()} >= carried | {"model.safetensors", "config.json"}
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == AUTO_MAP


def test_the_folder_is_complete(exported: Path) -> None:
    for name in ("model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "modeling_looped.py"):
        assert (exported / name).is_file(), name
    card = (exported / "README.md").read_text()
    assert "plan `2x2`" in card
    assert "test: perplexity" in card or "test: " in card
    assert str(Path.home()) not in (exported / "loopt_run.json").read_text()
    assert str(text_directory()) not in (exported / "loopt_run.json").read_text()


def test_no_place_of_this_machine_is_exported(text_run: Run, tmp_path: Path) -> None:
    begun_elsewhere = replace(text_run.config, start=StartConfig(str(text_run.directory)))
    train(begun_elsewhere, tmp_path / "run", CPU)
    export_run(Run.load(tmp_path / "run"), tmp_path / "folder")
    config = json.loads((tmp_path / "folder" / "loopt_run.json").read_text())["config"]
    assert (config["start"]["run"], config["source"]["data"]) == ("", "")
    assert config["start"]["weights"]


@torch.no_grad()
def test_what_was_exported_comes_back(text_run: Run, exported: Path, tmp_path: Path) -> None:
    assert run_command("import", str(exported), str(tmp_path / "back")) == 0
    back, ours = loopt.load(tmp_path / "back"), loopt.load(text_run.directory)
    assert back.config == ours.config
    assert all(torch.equal(tensor, ours.state_dict()[name]) for name, tensor in back.state_dict().items())
    prompt = ["the cat sees"]
    (written,), (expected,) = (loopt.generate(model, prompt, max_new_tokens=5) for model in (back, ours))
    assert written.text == expected.text


def test_a_task_has_its_words_as_tokenizer(tmp_path: Path) -> None:
    train(replace(TINY, steps=6), tmp_path / "run", Session(device="cpu", progress=False))
    assert run_command("export", str(tmp_path / "run"), str(tmp_path / "out"), "--loops", "3") == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    task = Run.load(tmp_path / "run").config.source
    assert tokenizer("abca")["input_ids"] == task.encode("abca")  # type: ignore[attr-defined]
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.num_hidden_layers == 3
    assert run_command("import", str(tmp_path / "out"), str(tmp_path / "back")) == 0
    assert str(Run.load(tmp_path / "back").config.model.plan) == "1x2"


def test_what_is_there_is_not_overwritten(exported: Path, text_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("export", str(text_run.directory), str(exported)) == 2
    assert "exists already" in capsys.readouterr().err
    assert run_command("import", str(exported), str(text_run.directory)) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config.json in it"):
        load_looped(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(InputError, match=r"allowed is loopt \| ouro"):
        load_looped(tmp_path)


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = (torch.arange(8) + index) % 9 + 1
        return {"input_ids": ids, "labels": ids}


@pytest.mark.slow
def test_the_trainer_and_lora_train_it(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    peft = pytest.importorskip("peft")
    config = loopt.hf.LoopedConfig(plan="2x3", d_model=16, n_heads=2, d_ff=24, vocab_size=11, max_len=16)
    torch.manual_seed(0)
    model = loopt.hf.LoopedForCausalLM(config)
    regularizer = loopt.hf.CosineRegularizer(model, block=1, weight=1.0)
    before = regularizer.cosine().item()
    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=20, learning_rate=1e-2, report_to=[], use_cpu=True, logging_steps=1,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(model, settings, train_dataset=Rows(), callbacks=[regularizer])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] / 2
    assert float(regularizer.cosine()) > before + 0.1
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["qkv", "up"], task_type="CAUSAL_LM"))
    ids = Rows()[0]["input_ids"][None]
    start = adapted(ids).logits.detach()
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        adapted(ids, labels=ids.flip(1)).loss.backward()
        optimizer.step()
    assert not torch.allclose(adapted(ids).logits, start)
    adapted.generate(input_ids=ids, max_new_tokens=2, do_sample=False, pad_token_id=0)
    whole = adapted.eval()(ids).logits
    torch.testing.assert_close(adapted.merge_and_unload()(ids).logits, whole, rtol=0, atol=1e-4)


@pytest.mark.parametrize("damage", ["empty", "cut"])
def test_a_damaged_folder_is_refused_in_one_line(damage: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    native = loopt.LoopedTransformer(loopt.ModelConfig("1x2", 8, 2, 8, 5, 8))  # type: ignore[arg-type]
    to_transformers(native).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"" if damage == "empty" else weights.read_bytes()[:-20])
    with pytest.raises(InputError, match="cannot be loaded"):
        load_looped(tmp_path)
