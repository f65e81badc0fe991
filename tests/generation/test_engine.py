"""Generation: rows do not know of each other, drafts change nothing, texts stop where they should."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loopt
from loopt import InputError, LoopedTransformer, LoopPlan, ModelConfig
from loopt.generation import Completion, Engine, Entropy, Settings, StateChange, generate, stream
from loopt.source import Codec

PLANS = ["3x1", "1x4", "2x3", "1x(1,3,1)", "2x3*+2x2"]
SMALL = ModelConfig(LoopPlan.parse("1x4"), d_model=16, n_heads=4, d_ff=24, vocab_size=11, max_len=24)
prompts_of = st.lists(st.lists(st.integers(0, 10), min_size=1, max_size=9), min_size=1, max_size=5)


class Letters(Codec):
    """Every token is a letter, but for the last, which ends a text."""

    words = "abcdefghij"

    @property
    def vocab_size(self) -> int:
        return 11

    @property
    def end(self) -> int | None:
        return 10

    def encode(self, text: str) -> list[int]:
        return [self.words.index(letter) for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.words[token] for token in tokens)

    def stream(self) -> Callable[[int], str]:
        return lambda token: self.words[token]


def build(plan: str = "1x4", **changes: Any) -> LoopedTransformer:
    torch.manual_seed(0)
    model = LoopedTransformer(replace(SMALL, plan=LoopPlan.parse(plan), **changes)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@torch.no_grad()
def greedy(model: LoopedTransformer, prompt: list[int], count: int, loops: int | None) -> tuple[list[int], list[float]]:
    """The likeliest next token, again and again, without a cache."""
    tokens, log_probabilities = list(prompt), []
    for _ in range(count):
        said = model(torch.tensor([tokens]), loops)[0, -1].log_softmax(0)
        tokens.append(int(said.argmax()))
        log_probabilities.append(said.max().item())
    return tokens[len(prompt) :], log_probabilities


def said(completions: list[Completion]) -> list[list[int]]:
    return [one.tokens for one in completions]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PLANS), prompts_of, st.sampled_from([None, 1, 6]), st.integers(1, 12), st.integers(1, 4))
def test_greedy_generation_is_the_likeliest_token_again_and_again(
    plan: str, prompts: list[list[int]], loops: int | None, count: int, batch_size: int
) -> None:
    model = build(plan)
    found = generate(model, prompts, max_new_tokens=count, loops=loops, batch_size=batch_size)
    for prompt, one in zip(prompts, found, strict=True):
        tokens, log_probabilities = greedy(model, prompt, count, loops)
        assert one.tokens == tokens
        assert one.log_probabilities == pytest.approx(log_probabilities, abs=1e-9)
        assert one.finish == "length"
        assert one.text == ""


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PLANS[1:]), prompts_of, st.integers(1, 3), st.integers(1, 6), st.integers(1, 14), st.data())
def test_drafts_change_nothing(
    plan: str, prompts: list[list[int]], drafts: int, draft_tokens: int, count: int, data: Any
) -> None:
    model = build(plan)
    loops = data.draw(st.sampled_from([None, drafts + 1, 6]))
    used = loops or max(block.loops for block in model.config.plan.blocks)
    if drafts >= used:
        return
    plain = generate(model, prompts, max_new_tokens=count, loops=loops)
    drafted = generate(
        model, prompts, max_new_tokens=count, loops=loops, draft_loops=drafts, draft_tokens=draft_tokens, batch_size=3
    )
    assert said(drafted) == said(plain)
    for one, other in zip(plain, drafted, strict=True):
        assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-9)
        assert 0 <= other.accepted <= other.drafted
        assert (other.drafted > 0) == (count > 1)


def test_drafts_are_counted_by_what_fewer_loops_would_have_said() -> None:
    model, prompt = build("1x4"), [3, 1, 4]
    (one,) = generate(model, [prompt], max_new_tokens=9, draft_loops=2, draft_tokens=2)
    text, at, drafted, accepted = prompt + one.tokens, len(prompt), 0, 0
    while at < len(text) - 1:
        with torch.no_grad():
            drafts: list[int] = []
            for _ in range(2):
                drafts.append(int(model(torch.tensor([[*text[: at + 1], *drafts]]), 2)[0, -1].argmax()))
        agreed = 0
        for draft in drafts:
            tokens = [*text[: at + 1], *drafts[:agreed]]
            right = int(model(torch.tensor([tokens]))[0, -1].argmax())
            if draft != right:
                break
            agreed += 1
        drafted, accepted, at = drafted + 2, accepted + agreed, at + min(agreed + 1, 2)
    assert (one.drafted, one.accepted) == (drafted, accepted)


@settings(max_examples=30, deadline=None)
@given(prompts_of, st.randoms(use_true_random=False), st.sampled_from([None, Entropy(2.0), StateChange(0.7)]))
def test_a_row_does_not_know_of_its_neighbors(prompts: list[list[int]], draw: Any, rule: Any) -> None:
    """Alone, in a batch, in another order, beside others that stop earlier: the same tokens."""
    model = build()
    chosen = Settings(max_new_tokens=8, temperature=1.3, top_p=0.9, seed=4, exit=rule, stop_ids=(3, 5))
    together = generate(model, prompts, chosen)
    order = list(range(len(prompts)))
    draw.shuffle(order)
    shuffled = generate(model, [prompts[i] for i in order], chosen, batch_size=2)
    for place, i in enumerate(order):
        (alone,) = generate(model, [prompts[i]], chosen)
        assert alone.tokens == together[i].tokens == shuffled[place].tokens
        assert alone.loops == together[i].loops == shuffled[place].loops
        assert alone.log_probabilities == pytest.approx(together[i].log_probabilities, abs=1e-9)


def test_samples_of_a_prompt_differ_and_repeat() -> None:
    model = build()
    found = generate(model, [[1, 2], [1, 2], [7]], max_new_tokens=6, temperature=1.5, samples=3)
    assert len(found) == 9
    assert len({tuple(one.tokens) for one in found[:3]}) == 3
    assert said(found[:3]) == said(found[3:6])  # the same prompt and seed
    assert said(found) == said(generate(model, [[1, 2], [1, 2], [7]], max_new_tokens=6, temperature=1.5, samples=3))
    assert said(found) != said(
        generate(model, [[1, 2], [1, 2], [7]], max_new_tokens=6, temperature=1.5, samples=3, seed=1)
    )
    by_seeds = generate(model, [[1, 2], [1, 2], [7]], max_new_tokens=6, temperature=1.5, seeds=[0, 5, 0])
    assert by_seeds[0].tokens == found[0].tokens
    assert by_seeds[1].tokens != found[0].tokens
    assert by_seeds[2].tokens == found[6].tokens


def test_generation_goes_on_to_the_longest_text_and_no_further() -> None:
    model = build()
    (one,) = generate(model, [[1] * 20], max_new_tokens=100)
    assert (len(one.tokens), one.finish) == (24 - 20 + 1, "length")  # the last one is not read
    assert one.tokens == greedy(model, [1] * 20, 5, None)[0]
    (one,) = generate(model, [[1] * 24], max_new_tokens=2)
    assert len(one.tokens) == 1


def test_rows_of_different_limits_end_each_at_its_own() -> None:
    model = build()
    found = generate(model, [[1] * 22, [2]], max_new_tokens=10)
    assert [len(one.tokens) for one in found] == [3, 10]
    assert said(found) == [greedy(model, [1] * 22, 3, None)[0], greedy(model, [2], 10, None)[0]]


def test_stop_ids_and_the_end_of_a_text_stop_a_row() -> None:
    model = build()
    (free,) = generate(model, [[1, 2]], max_new_tokens=12)
    third = free.tokens[2]
    (one,) = generate(model, [[1, 2]], max_new_tokens=12, stop_ids=(third,))
    until = free.tokens.index(third) + 1
    assert (one.tokens, one.finish) == (free.tokens[:until], "stop")
    assert len(one.log_probabilities) == len(one.loops) == until

    scale = model.final_norm.weight
    assert isinstance(scale, torch.Tensor)
    with torch.no_grad():
        model.readout_projection.weight[10] = 40 * scale  # ends everything at once
    (ended,) = generate(model, ["ab"], codec=Letters(), max_new_tokens=12)
    assert (ended.tokens, ended.text, ended.finish) == ([10], "", "stop")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text("abcdefghij", min_size=1, max_size=3), min_size=1, max_size=3))
def test_stop_texts_are_cut_off_and_nothing_before_them(stops: list[str]) -> None:
    model = build()
    free = generate(model, "ab", codec=Letters(), max_new_tokens=15, temperature=2.0, seed=2)[0]
    pieces = list(stream(model, "ab", codec=Letters(), max_new_tokens=15, temperature=2.0, seed=2, stop=tuple(stops)))
    (one,) = generate(model, "ab", codec=Letters(), max_new_tokens=15, temperature=2.0, seed=2, stop=tuple(stops))
    ends = [free.text.index(stop) + len(stop) for stop in stops if stop in free.text]
    if not ends:
        assert one == free
    else:
        first = min(ends)  # where the first of them to be complete ends
        begins = [free.text[:first].index(stop) for stop in stops if stop in free.text[:first]]
        assert one.text == free.text[: min(begins)]
        assert (one.tokens, one.finish) == (free.tokens[:first], "stop")
    assert "".join(piece.text for piece in pieces) == one.text
    assert [piece.token for piece in pieces] == one.tokens


def test_streaming_tells_every_token_as_it_comes_and_of_which_row() -> None:
    model = build()
    prompts = ["abc", "j"]
    pieces = list(stream(model, prompts, codec=Letters(), max_new_tokens=6, temperature=1.0, samples=2))
    found = generate(model, prompts, codec=Letters(), max_new_tokens=6, temperature=1.0, samples=2)
    for row, one in enumerate(found):
        mine = [piece for piece in pieces if piece.row == row]
        assert [piece.token for piece in mine] == one.tokens
        assert "".join(piece.text for piece in mine) == one.text
    assert [piece.row for piece in pieces[:4]] == [0, 1, 2, 3]  # turn by turn


def test_an_engine_is_used_again_with_other_prompts() -> None:
    model = build()
    engine = Engine(model, rows=3, length=16, settings=Settings(max_new_tokens=5))
    for prompts in ([[1], [2], [3]], [[4, 5, 6, 7]], [[1]] * 7):
        assert said(engine.generate(prompts)) == said(generate(model, prompts, max_new_tokens=5))


@pytest.mark.parametrize("changes", [{}, {"exit": StateChange(0.1)}, {"draft_loops": 2}], ids=str)
def test_an_engine_that_nobody_holds_is_gone_with_its_cache(changes: dict[str, Any]) -> None:
    engine = Engine(build(), rows=2, length=20, settings=Settings(max_new_tokens=4, **changes))
    engine.generate([[1, 2], [3]])
    cache = weakref.ref(engine._turns.decoder.cache)  # type: ignore[attr-defined]
    gc.disable()  # a cycle would wait for it, and hold gigabytes meanwhile
    try:
        del engine
        assert cache() is None
    finally:
        gc.enable()


def test_loops_are_reported() -> None:
    model = build("1x4")
    assert generate(model, [[1, 2]], max_new_tokens=3)[0].loops == [4, 4, 4]
    assert generate(model, [[1, 2]], max_new_tokens=3, loops=7)[0].loops == [7, 7, 7]
    (one,) = generate(model, [[1, 2]], max_new_tokens=6, exit=StateChange(1e9))
    assert one.loops == [4, 1, 1, 1, 1, 1]  # the prompt runs all of them


def test_a_vocabulary_larger_than_the_tokenizers_is_not_chosen_from() -> None:
    class Five(Letters):
        vocab_size = 5
        end = None

    found = generate(build(), ["a", "b"], codec=Five(), max_new_tokens=10, temperature=50.0)
    assert max(token for one in found for token in one.tokens) == 4


def broken() -> LoopedTransformer:
    model = build()
    with torch.no_grad():
        model.readout_projection.weight[3] = math.nan
    return model


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: generate(build(), [[]]), "prompt 0 is empty; allowed are 1 to 24 tokens"),
        (lambda: generate(build(), []), "prompts: none given; allowed is one or more"),
        (lambda: generate(build(), [[1], [2] * 25]), "prompt 1 of 25 tokens; allowed are 1 to 24, the model's max_len"),
        (lambda: generate(build(), [[11]]), "prompt 0: token 11; allowed are 0 to 10, the model's vocabulary"),
        (lambda: generate(build(), [[-1]]), "prompt 0: token -1; allowed are 0 to 10"),
        (lambda: generate(build(vocab_size=9), "a", codec=Letters()), "vocabulary: the tokenizer has 11 tokens; the"),
        (lambda: generate(build(), "ab"), "prompt 0 is text, and this model has no tokenizer"),
        (lambda: generate(build(), [[1]], max_new_tokens=0), "max_new_tokens=0: allowed is 1 to"),
        (lambda: generate(broken(), [[1, 2]]), "logits after 2 tokens are not numbers"),
        (lambda: generate(broken(), [[1, 2]], draft_loops=1), "logits after 2 tokens are not numbers"),
        (lambda: generate(build(), [[1]], temperature=-1.0), "temperature=-1.0: allowed is 0 (greedy) or more"),
        (lambda: generate(build(), [[1]], top_k=0), "top_k=0: allowed is 1 or more, or none"),
        (lambda: generate(build(), [[1]], top_p=0.0), "top_p=0.0: allowed is more than 0, at most 1"),
        (lambda: generate(build(), [[1]], min_p=2.0), "min_p=2.0: allowed is 0 to 1"),
        (lambda: generate(build(), [[1]], repetition_penalty=0.0), "repetition_penalty=0.0: allowed is more than 0"),
        (lambda: generate(build(), [[1]], stop=("",)), "stop=('',): allowed is texts that are not empty"),
        (lambda: generate(build(), [[1]], stop_ids=(11,)), "stop_ids=11: allowed is 0 to 10"),
        (lambda: generate(build(), [[1]], seeds=[1, 2]), "2 seeds: allowed is one for each of the 1 prompts"),
        (lambda: generate(build(), [[1]], draft_loops=4), "draft_loops=4: allowed is 1 to 3, fewer than the 4 loops"),
        (lambda: generate(build(), [[1]], draft_loops=1, temperature=1.0), "draft_loops=1: allowed is none unless"),
        (lambda: generate(build(), [[1]], draft_loops=1, cache="last"), "draft_loops=1: allowed is none unless cache"),
        (lambda: generate(build(), [[1]], draft_loops=1, exit=Entropy(1.0)), "draft_loops=1: allowed is none wi"),
        (lambda: generate(build("2x(2,2)"), [[1]], loops=3), "plan: 2x(2,2) does not tell which of its 2 blocks"),
        (
            lambda: Engine(build(), 1, 10, Settings(max_new_tokens=5)).generate([[1] * 7]),
            "cache too small: prompt 0 of 7 tokens with 5 new ones",
        ),
    ],
)
def test_what_cannot_be_generated_is_refused_in_one_line(call: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_generate_is_the_packages() -> None:
    assert loopt.generate is generate
