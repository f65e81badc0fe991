"""The examples that use Transformers run as they are, on a tiny random model that was saved here."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

import tokenizers
import transformers as tf

from loopt.hf import LoopedConfig, LoopedDecoder, LoopedForCausalLM, loop_model

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "max_position_embeddings": 64}
TASK = """
task: tiny_choose
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["c", "f"]
doc_to_target: right
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


def saved(model: tf.PreTrainedModel, folder: Path) -> Path:
    """Returns a folder with the model and a tokenizer, of whose 19 words each is a letter."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)), alpha=0.1)
    model.save_pretrained(folder)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({chr(97 + i): i for i in range(19)}, unk_token="a"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tf.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="a", pad_token="a").save_pretrained(folder)
    return folder


def some_text(folder: Path) -> Path:
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text("b c d e f g " * 12)
    return folder


def run_example(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_a_looped_gpt2_is_healed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tf.GPT2Config(
        n_layer=4, n_embd=16, n_head=2, vocab_size=19, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    given = saved(tf.GPT2LMHeadModel(config), tmp_path / "gpt2"), some_text(tmp_path / "text")
    options = "--plan", "1x1+2x2+1x1", "--steps", 20, "--length", 12, "--lr", 1e-2, "--out", tmp_path / "out"
    run_example(monkeypatch, "heal_gpt2.py", *given, *options)
    before, undamped, damped, healed = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines())
    assert damped == before != undamped
    assert healed < before / 2
    loaded = tf.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert isinstance(loaded, LoopedDecoder)
    assert loaded.config.running_plan.depth == 6
    assert loaded.get_parameter("damping.1.factors").abs().min() > 0


@pytest.mark.slow
def test_a_regularized_llama_can_be_looped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("accelerate")
    config = tf.LlamaConfig(**SIZES, num_hidden_layers=4, vocab_size=19)
    given = saved(tf.LlamaForCausalLM(config), tmp_path / "llama"), some_text(tmp_path / "text")
    options = "--block", 2, "--steps", 60, "--length", 12, "--lr", 1e-2
    for weight in (0, 10):
        out = tmp_path / f"out{weight}"
        run_example(monkeypatch, "regularize_llama.py", *given, *options, "--weight", weight, "--out", out)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("before", "after"))]
    numbers = [tuple(map(float, re.findall(r"-?\d+\.\d+", line))) for line in lines]
    (before, plain), (same, drawn) = numbers[:2], numbers[2:]  # of each the cosine, the perplexity, and looped
    assert same == before
    assert drawn[0] > 0.9 > plain[0]
    assert drawn[1] < before[1] / 2
    assert drawn[2] < plain[2]
    assert tf.AutoModelForCausalLM.from_pretrained(tmp_path / "out10").num_parameters() > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_the_harness_evaluates_it_with_any_loops(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lm_eval")
    pytest.importorskip("accelerate")
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    torch.manual_seed(0)
    if kind == "ours":
        config = LoopedConfig(plan="2x2", d_model=16, n_heads=2, d_ff=24, vocab_size=19, max_len=64)
        folder = saved(LoopedForCausalLM(config), tmp_path / "model")
    else:
        llama = tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES, num_hidden_layers=4, vocab_size=19))
        folder = saved(loop_model(llama, "2x2"), tmp_path / "model")
    letters = torch.randint(1, 19, (40, 3), generator=torch.Generator().manual_seed(1)).tolist()
    documents = [{"question": " ".join(chr(97 + i) for i in row), "right": row[0] % 2} for row in letters]
    (tmp_path / "data.json").write_text("".join(json.dumps(one) + "\n" for one in documents))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "tiny.yaml").write_text(TASK.format(data=json.dumps(str(tmp_path / "data.json"))))
    options = "--tasks", "tiny_choose", "--task-folder", tmp_path / "tasks", "--loops", 1, 3
    run_example(monkeypatch, "evaluate_with_harness.py", folder, *options)
    printed = capsys.readouterr().out
    lines = re.findall(r"^(\d) loops, tiny_choose: acc ([\d.]+), acc_stderr [\d.]+$", printed, re.MULTILINE)
    assert [loops for loops, _ in lines] == ["1", "3"]
    shown = [float(accuracy) for _, accuracy in lines]
    model = tf.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = tf.AutoTokenizer.from_pretrained(folder)
    for loops, accuracy in zip((1, 3), shown, strict=True):
        model.set_loops(loops)
        right = [likelier(model, tokenizer, one["question"]) == one["right"] for one in documents]
        assert accuracy == pytest.approx(sum(right) / len(documents), abs=1e-4)
    assert shown[0] != shown[1]


@torch.no_grad()
def likelier(model: tf.PreTrainedModel, tokenizer: tf.PreTrainedTokenizerFast, question: str) -> int:
    """Returns which of the two answers the model gives the higher probability."""
    sums = []
    for answer in ("c", "f"):
        before, both = tokenizer(question).input_ids, torch.tensor([tokenizer(f"{question} {answer}").input_ids])
        scores = model(both).logits.log_softmax(-1)[0, :-1].gather(1, both[0, 1:, None])
        sums.append(float(scores[len(before) - 1 :].sum()))
    return int(sums[1] > sums[0])


@pytest.mark.parametrize("name", ["heal_gpt2.py", "regularize_llama.py"])
def test_a_folder_with_too_little_text_is_refused_before_anything_is_trained(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = saved(tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES, num_hidden_layers=4, vocab_size=19)), tmp_path / "llama")
    text = some_text(tmp_path / "text")
    for file in sorted(text.glob("*.txt"))[1:]:
        file.unlink()
    with pytest.raises(SystemExit):
        run_example(monkeypatch, name, given, text, "--length", 8, "--out", tmp_path / "out")
    assert "allowed is a folder of 2 or more .txt files" in capsys.readouterr().err
