"""Our runs in lm-evaluation-harness: its tasks get what the model itself says."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval")

from command_line import run
from loopt import InputError, LoopedTransformer
from tiny_language_runs import language_run

CHOICES = ["cat", "dog sees", "red"]
DOCUMENTS = [
    {"question": "the cat sees the", "answer": "dog", "right": 1},
    {"question": "one red dog never hears a", "answer": "cat", "right": 0},
    {"question": "never", "answer": "always.", "right": 2},
]
GENERATING = """
task: tiny_generate
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["e"], max_gen_toks: 6}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""
CHOOSING = """
task: tiny_choose
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: {choices}
doc_to_target: right
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
ROLLING = """
task: tiny_rolling
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{question}}}}"
metric_list: [{{metric: byte_perplexity, aggregation: weighted_perplexity, higher_is_better: false}}]
"""


@torch.no_grad()
def nats(model: LoopedTransformer, context: str, text: str) -> float:
    """Minus the log-probability of a text behind a context that begins a document."""
    before, both = model.codec.encode(context), model.codec.encode(context + text)
    row = torch.tensor([[model.codec.end, *both]])
    scores = model(row[:, :-1], 3).log_softmax(2).gather(2, row[:, 1:, None])[0, :, 0]
    return -float(scores[len(before) :].sum())


@torch.no_grad()
def completed(model: LoopedTransformer, prompt: str, stop: str, limit: int) -> str:
    tokens = [model.codec.end, *model.codec.encode(prompt)]
    first, text = len(tokens), ""
    while len(tokens) < first + limit:
        tokens.append(int(model(torch.tensor([tokens]), 3)[0, -1, : model.codec.vocab_size].argmax()))
        if tokens[-1] == model.codec.end:
            break
        text = model.codec.decode(tokens[first:])
        if stop in text:
            return text.partition(stop)[0]
    return text


@pytest.mark.slow
def test_tasks_of_the_harness_get_what_the_model_itself_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    import loopt.evaluation.harness

    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    data = tmp_path / "data.json"
    data.write_text("".join(json.dumps(one) + "\n" for one in DOCUMENTS))
    (tmp_path / "tasks").mkdir()
    for name, template in (("generate", GENERATING), ("choose", CHOOSING), ("rolling", ROLLING)):
        written = template.format(data=json.dumps(str(data)), choices=json.dumps(CHOICES))
        (tmp_path / "tasks" / f"{name}.yaml").write_text(written)
    result = simple_evaluate(
        model="loopt",
        model_args=f"run={language_run()},loops=3,device=cpu",
        tasks=["tiny_generate", "tiny_choose", "tiny_rolling"],
        task_manager=TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False),
        bootstrap_iters=0,
    )
    model = loopt.load(language_run())
    for one in result["samples"]["tiny_generate"]:
        assert one["resps"][0][0] == completed(model, one["doc"]["question"], "e", 6)
    for one in result["samples"]["tiny_choose"]:
        found = [-choice[0][0] for choice in one["resps"]]
        wanted = [nats(model, one["doc"]["question"], f" {choice}") for choice in CHOICES]
        assert all(math.isclose(*pair, rel_tol=1e-4) for pair in zip(found, wanted, strict=True))
    for one in result["samples"]["tiny_rolling"]:
        assert math.isclose(-one["resps"][0][0], nats(model, "", one["doc"]["question"]), rel_tol=1e-4)


def test_the_harness_is_handed_the_line_with_our_model_and_our_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    import lm_eval.__main__
    from lm_eval.api.registry import get_model

    lines: list[list[str]] = []
    monkeypatch.setattr(lm_eval.__main__, "cli_evaluate", lambda: lines.append(list(sys.argv)))
    monkeypatch.setattr(sys, "argv", sys.argv)
    assert run("lm-eval", "--model", "loopt", "--tasks", "loopt_svamp") == 0
    assert run("lm-eval", "--tasks", "mine", "--include_path=here") == 0
    assert lines[0][:-1] == ["lm-eval", "--model", "loopt", "--tasks", "loopt_svamp", "--include_path"]
    assert lines[1] == ["lm-eval", "--tasks", "mine", "--include_path=here"]
    assert get_model("loopt").__name__ == "HarnessModel"


@pytest.mark.slow
def test_sampling_is_as_a_task_asks_and_what_is_not_known_is_refused() -> None:
    from lm_eval.api.instance import Instance

    from loopt.evaluation.harness import HarnessModel

    def asked(**settings: Any) -> list[Instance]:
        return [Instance("generate_until", {}, ("the cat", {"until": ["zzz"], "max_gen_toks": 8, **settings}), 0)] * 2

    model = HarnessModel(str(language_run()), device="cpu")
    greedy, again = model.generate_until(asked(), disable_tqdm=True)
    assert greedy == again
    one, other = model.generate_until(asked(do_sample=True, temperature=2.0), disable_tqdm=True)
    assert one != other
    model.model.batch = 1
    assert model.generate_until(asked(do_sample=True, temperature=2.0), disable_tqdm=True) == [one, other]
    with pytest.raises(InputError, match="num_beams is not known"):
        model.generate_until(asked(num_beams=3), disable_tqdm=True)


def test_the_first_screen_of_lm_eval_says_what_it_adds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lm-eval", "--help") == 0
    assert "run=DIRECTORY" in capsys.readouterr().out


def test_a_missing_harness_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", None)
    assert run("lm-eval", "ls", "tasks") == 2
    assert capsys.readouterr().err == (
        "loopt: lm-eval needs lm-evaluation-harness; install it with: pip install 'loopt[eval]'\n"
    )
