"""Predictions: what a model says without a cache, one request at a time, whatever the batch; prompts that fit."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopt import InputError, LoopedTransformer, LoopPlan, ModelConfig
from loopt.evaluation.exchange import Prediction, Request
from loopt.evaluation.language_model import Continuation, windows_of
from loopt.evaluation.looped import LoopedModel
from loopt.evaluation.predict import fit_prompts, predict
from loopt.scoring import score_text
from loopt.source import Codec

LETTERS = "abcdefghijkl .:"
END = len(LETTERS)


class Letters(Codec):
    """Every token is a letter, but for the last, which ends a text."""

    @property
    def vocab_size(self) -> int:
        return END + 1

    @property
    def end(self) -> int | None:
        return END

    def encode(self, text: str) -> list[int]:
        return [LETTERS.index(letter) for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(LETTERS[token] for token in tokens)

    def stream(self) -> Callable[[int], str]:
        return lambda token: LETTERS[token]


def build(plan: str = "1x3", max_len: int = 24) -> LoopedTransformer:
    torch.manual_seed(0)
    config = ModelConfig(LoopPlan.parse(plan), d_model=16, n_heads=4, d_ff=24, vocab_size=END + 1, max_len=max_len)
    model = LoopedTransformer(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def request(number: int, shots: Sequence[str], question: str, gold: str, stop: str = ".", limit: int = 5) -> Request:
    return Request("invented", str(number), tuple(shots), question, (gold, "other"), (stop,), limit)


@torch.no_grad()
def by_hand(model: LoopedTransformer, one: Request, loops: int | None) -> Prediction:
    """The prediction without a cache, padding or a batch."""
    encode, most, dropped, cut = Letters().encode, model.config.max_len, 0, 0
    gold = encode(" " + one.golds[0])
    room = max(most - max(one.max_new_tokens, len(gold)) + 1, most // 2)
    while True:
        prompt = encode("".join(one.shots[dropped:]) + one.question)
        if len(prompt) + 1 <= room:
            break
        if dropped < len(one.shots):
            dropped += 1
            continue
        cut = len(prompt) + 1 - room
        prompt = prompt[cut:]
        break
    prompt = [END, *prompt]
    said, tokens = "", list(prompt)
    for _ in range(min(one.max_new_tokens, most - len(prompt) + 1)):
        token = int(model(torch.tensor([tokens]), loops)[0, -1].argmax())
        if token == END:
            break
        tokens, said = [*tokens, token], said + LETTERS[token]
        if one.stop[0] in said:
            said = said.partition(one.stop[0])[0]
            break
    row = torch.tensor([prompt + gold])[:, -(most + 1) :]
    scores = model(row[:, :-1], loops).log_softmax(2).gather(2, row[:, 1:, None])[0, :, 0]
    return Prediction(one.task, one.id, said, -float(scores[-len(gold) :].sum()), len(gold), dropped, cut)


texts = st.text(LETTERS, max_size=12)
requests_of = st.lists(
    st.tuples(st.lists(texts, max_size=3), texts, texts, st.sampled_from([".", "ab", ": "]), st.integers(1, 9)),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(requests_of, st.sampled_from(["1x3", "2x1", "1x(1,2,1)"]), st.sampled_from([None, 1, 4]))
def test_predictions_are_those_without_a_cache_or_a_batch(
    given: list[tuple[list[str], str, str, str, int]], plan: str, loops: int | None
) -> None:
    model = build(plan)
    loops = loops if model.config.plan.loopable is not None else None
    requests = [request(number, *one) for number, one in enumerate(given)]
    found = {one.id: one for one in predict(model, Letters(), requests, loops=loops)}
    assert len(found) == len(requests)
    for one in requests:
        wanted, got = by_hand(model, one, loops), found[one.id]
        assert math.isclose(got.gold_nats, wanted.gold_nats, rel_tol=1e-9)
        assert (got.text, got.gold_bytes) == (wanted.text, wanted.gold_bytes)
        assert (got.shots_dropped, got.tokens_cut) == (wanted.shots_dropped, wanted.tokens_cut)


def test_more_requests_than_fit_a_batch_are_answered_like_few() -> None:
    model = build()
    requests = [request(number, ["ab. "] * (number % 4), "c" * (number % 7), "de") for number in range(70)]
    together = {one.id: one for one in predict(model, Letters(), requests)}
    for one in requests[::9]:
        (alone,) = predict(model, Letters(), [one])
        assert together[one.id].text == alone.text
        assert math.isclose(together[one.id].gold_nats, alone.gold_nats, rel_tol=1e-9)


def test_an_answer_ends_before_its_stop_text_also_where_neighbors_go_on() -> None:
    model, asked = build(), request(0, [], "abc:", "de", stop="zz", limit=9)
    (whole,) = predict(model, Letters(), [asked])
    assert whole.text is not None
    stop = whole.text[3:5]
    stopping = request(1, [], "abc:", "de", stop=stop, limit=9)
    found = {one.id: one.text for one in predict(model, Letters(), [asked, stopping])}
    assert found == {"0": whole.text, "1": whole.text.partition(stop)[0]}
    assert found["0"] != found["1"]


def test_likelihoods_alone_are_the_same_and_say_nothing() -> None:
    model, requests = build(), [request(0, ["ab. "], "c:", "de")]
    (both,), (alone,) = predict(model, Letters(), requests), predict(model, Letters(), requests, generate=False)
    assert alone.text is None
    assert both.text is not None
    assert alone.gold_nats == both.gold_nats


def test_whole_shots_are_dropped_from_the_front_and_a_question_keeps_its_end() -> None:
    model = LoopedModel(build(max_len=24), Letters())  # room for 24 - 4 tokens, of which the first ends a document
    long, fits, cut = fit_prompts(
        model,
        [
            request(0, ["aaaa. ", "bbbb. ", "cccc. "], "dddddd:", "e"),
            request(1, ["aaaa. ", "bbbb. "], "ddddd:", "e"),
            request(2, ["aaaa. "], "abcdefghijklabcdefghijkl:", "e"),
        ],
    )
    assert (Letters().decode(long.tokens[1:]), long.shots_dropped, long.tokens_cut) == ("bbbb. cccc. dddddd:", 1, 0)
    assert (Letters().decode(fits.tokens[1:]), fits.shots_dropped, fits.tokens_cut) == ("aaaa. bbbb. ddddd:", 0, 0)
    assert (Letters().decode(cut.tokens[1:]), cut.shots_dropped, cut.tokens_cut) == ("ghijklabcdefghijkl:", 1, 6)


def test_an_answer_longer_than_the_context_is_scored_as_a_text_is() -> None:
    model, text = build(max_len=6), "abc def ghi jkl"
    (found,) = LoopedModel(model, Letters()).likelihoods([Continuation([END], Letters().encode(text))])
    wanted = score_text(model, text, Letters())
    assert math.isclose(found.log_probability, sum(wanted.log_probabilities), rel_tol=1e-9)


@given(st.integers(1, 9), st.integers(1, 30), st.integers(1, 9))
def test_every_token_of_a_continuation_is_scored_once(context: int, count: int, max_len: int) -> None:
    row = list(range(context + count))
    windows = list(windows_of(Continuation(row[:context], row[context:]), max_len))
    assert [token for window in windows for token in window.tokens[-window.scored :]] == row[context:]
    assert all(window.scored < len(window.tokens) <= max_len + 1 for window in windows)


def test_a_model_that_knows_no_end_of_documents_is_refused() -> None:
    class Endless(Letters):
        @property
        def end(self) -> int | None:
            return None

    with pytest.raises(InputError, match="allowed is a language model's run"):
        predict(build(), Endless(), [])


@pytest.mark.slow
def test_predicting_needs_neither_the_harness_nor_what_reads_data_nor_what_draws() -> None:
    program = """
import sys
import loopt.evaluation.predict
names = ("lm_eval", "datasets", "matplotlib", "transformers")
print([name for name in (*names, "tyro") if name in sys.modules])
sys.modules.update(dict.fromkeys(names))  # as if they were not installed
import loopt.commands.eval_stages
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
