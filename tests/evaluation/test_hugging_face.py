"""Hugging Face models give what they say one row at a time, without padding."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from loopt import InputError
from loopt.evaluation.exchange import Request
from loopt.evaluation.hugging_face import HuggingFaceModel
from loopt.evaluation.predict import fit_prompts, predict_with
from loopt.text.tokenizer import train_tokenizer
from tiny_text_runs import documents


@pytest.fixture(scope="module", params=["rotary positions", "learned positions"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights and a tokenizer of its own, whose settings ask for sampling."""
    import transformers

    folder = tmp_path_factory.mktemp("model")
    text = folder / "trained.json"
    text.write_text(train_tokenizer(documents(seed=99), 300).text, encoding="utf-8")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(text), eos_token="<|endoftext|>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    given: dict[str, Any] = {"max_position_embeddings": 64, "initializer_range": 0.3, **sizes}
    model: Any
    if request.param == "rotary positions":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(intermediate_size=48, **given))
    else:
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**given))
    model.generation_config = transformers.GenerationConfig(do_sample=True, temperature=3.0, repetition_penalty=1.5)
    model.save_pretrained(folder)
    return folder


def requests() -> list[Request]:
    questions = ["the cat sees", "Question: a dog hears the red one?\nAnswer:", "one", "always. never Ünïcödé the"]
    return [
        Request("invented", str(number), ("a cat sees. the dog\n\n",) * number, question, ("the red dog",), stop, limit)
        for number, (question, stop, limit) in enumerate(
            zip(questions, [("\n",), ("e", "a"), ("zzz",), (" ",)], [5, 9, 12, 6], strict=True)
        )
    ]


@pytest.mark.slow
def test_batches_padded_on_the_left_give_what_each_row_gives_alone(saved: Path) -> None:
    model = HuggingFaceModel(str(saved), torch.device("cpu"))
    found = {one.id: one for one in predict_with(model, requests())}
    for fitted in fit_prompts(model, requests()):
        request, tokens = fitted.request, list(fitted.tokens)
        text = ""
        for _ in range(request.max_new_tokens):
            with torch.no_grad():
                token = int(model.model(torch.tensor([tokens])).logits[0, -1].argmax())
            if token == model.tokenizer.eos_token_id:
                break
            tokens.append(token)
            text = model.tokenizer.decode(tokens[len(fitted.tokens) :])
            ends = [text.find(stop) for stop in request.stop if stop in text]
            if ends:
                text = text[: min(ends)]
                break
        assert found[request.id].text == text
        row = torch.tensor([[*fitted.tokens, *fitted.gold]])
        with torch.no_grad():
            scores = model.model(row[:, :-1]).logits.log_softmax(2).gather(2, row[:, 1:, None])[0, :, 0]
        wanted = -float(scores[-len(fitted.gold) :].sum())
        assert math.isclose(found[request.id].gold_nats, wanted, rel_tol=1e-4)
        assert found[request.id].gold_bytes == len(" the red dog")


def test_an_answer_has_the_tokens_that_it_has_behind_a_prompt(saved: Path) -> None:
    model = HuggingFaceModel(str(saved), torch.device("cpu"))
    prompt, both = model.encode(["Answer:", "Answer: the dog"])
    assert prompt + model.encode_answers([" the dog"])[0] == both


def test_a_model_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be loaded"):
        HuggingFaceModel(str(tmp_path), torch.device("cpu"))
