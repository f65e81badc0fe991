"""Theorem 5.4: the looped transformer generates what chain of thought does, and needs every part of itself for it."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import cache

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from loopt.errors import InputError
from loopt.model import LoopedTransformer
from loopt.plan import LoopPlan
from loopt.tasks.binary_addition import FIRST_SUM, WORDS
from loopt.tasks.groups import group
from loopt.theory import chain_of_thought as cot
from loopt.theory import chain_of_thought_proof, examples
from loopt.theory.chain_of_thought import Constants, build_looped, build_masked, build_uncounted
from loopt.theory.chain_of_thought_cases import CHUNK, Case, addition_case, composing_case, random_case
from loopt.theory.chain_of_thought_proof import RANDOM_SHAPES, TOLERANCE, Thresholds, drift, prove, thresholds
from loopt.theory.examples import all_words, random_transformer, rounded
from loopt.theory.formal import FormalLayer, FormalTransformer, Head

pytestmark = pytest.mark.slow

BUILT = [(build_masked, cot.run_masked), (build_looped, cot.run_looped), (build_uncounted, cot.run_looped)]
SLACK = ("beta", "gap")
STRUCTURAL = [field.name for field in fields(Constants) if field.name not in SLACK]


@pytest.fixture(scope="module")
def addition() -> Case:
    return addition_case(bits=3)


@pytest.fixture(scope="module")
def wordy() -> Case:
    return random_case(seed=0, L=2, vocabulary=4, n=3, m=6)


def tokens_right(case: Case, built: FormalTransformer) -> bool:
    return torch.equal(cot.run_looped(built.model(), case.prompts, case.m), case.tokens)


def all_right(case: Case, built: FormalTransformer) -> bool:
    """As ``prove`` has it: the tokens, and what every position holds after each loop."""
    model = built.model()
    states = cot.looped_states(model, case.prompts, case.m)
    right = torch.equal(cot.read_out(model, states[-1]), case.tokens)
    return right and bool((drift(case.theta, model, states, case.tokens) <= TOLERANCE).all())


@settings(max_examples=25, deadline=None)
@given(
    plan=st.sampled_from(["1x1", "2x1", "3x1", "2x2", "1x1+1x2"]),
    V=st.integers(2, 5),
    n=st.integers(1, 3),
    m=st.integers(1, 7),
    widths=st.fixed_dictionaries(
        {"d": st.integers(1, 9), "heads": st.integers(1, 3), "d_qk": st.integers(1, 5), "d_v": st.integers(1, 5)}
    ),
    seed=st.integers(0, 10_000),
)
def test_any_transformer_is_simulated(plan: str, V: int, n: int, m: int, widths: dict[str, int], seed: int) -> None:
    theta = random_transformer(range(LoopPlan.parse(plan).distinct_layers), seed, vocabulary=V, n_max=n + m, **widths)
    theta = replace(theta, plan=LoopPlan.parse(plan))
    case = Case(theta, all_words(V, n), m)
    assume(case.gap > 1e-6)  # the theorem asks for a unique argmax
    for build, run in BUILT:
        built = build(theta, n, m, case.constants)
        assert torch.equal(run(built.model(), case.prompts, m), case.tokens)
        assert built.plan.blocks[0].layers == theta.plan.depth + 2
        assert (built.plan.blocks[0].loops, len(built.plan.blocks)) == (m, 1)
    looped = build_looped(theta, n, m, case.constants)
    s = math.floor(math.log2(n + m)) + 1
    assert looped.d == 2 * theta.d + 3 * V + 3 * s + 2
    assert looped.n_heads == theta.n_heads
    assert looped.d_attn == max(theta.d_attn, 2 * s, theta.d, V)
    assert looped.d_ff == max(theta.d_ff, V * V + V + 2 * theta.d + 2, 4 * V + s)
    assert all_right(case, looped)


@settings(max_examples=25, deadline=None)
@given(
    L=st.integers(1, 3),
    V=st.integers(2, 4),
    n=st.integers(1, 3),
    m=st.integers(1, 5),
    s=st.sampled_from([5, 8, 12]),
    seed=st.integers(0, 10_000),
)
def test_any_transformer_is_simulated_in_plain_fixed_point(L: int, V: int, n: int, m: int, s: int, seed: int) -> None:
    theta = rounded(random_transformer(range(L), seed, d=5, vocabulary=V, n_max=n + m), s)
    prompts = all_words(V, n)
    wanted = cot.chain_of_thought_in_precision(theta, prompts, m, s)
    unique = wanted[:, 0] >= 0  # as the theorem asks
    found = cot.run_in_precision(build_looped(theta, n, m, Constants.of(s)), prompts, m, s)
    assert torch.equal(found[unique], wanted[unique])


def test_random_cases_notice_a_missing_loop() -> None:
    for shape in RANDOM_SHAPES[1:3]:
        case = random_case(0, *shape)
        looped = build_looped(case.theta, case.n, case.m, case.constants)
        fewer = replace(looped, plan=looped.plan.with_loops(case.m - 1)).model()
        ids = cot.with_dummies(case.prompts, case.m, len(case.theta.tokens))
        assert not torch.equal(fewer(ids).argmax(-1), case.tokens)


def test_composing_word_by_word() -> None:
    s3 = group("S3")
    case = composing_case("S3", 5, 20, seed=0)
    products = [[s3.product(*word[: t + 1]) for t in range(5)] for word in case.prompts[:, :-1].tolist()]
    assert case.tokens[:, 6:].tolist() == products
    assert all_right(case, build_looped(case.theta, case.n, case.m, case.constants))


@pytest.mark.parametrize("bits", range(1, 5))
def test_every_sum_is_right(bits: int) -> None:
    case = addition_case(bits)
    assert torch.equal(case.tokens[:, case.n :], examples.all_additions(bits)[1])
    assert case.gap == pytest.approx(1, abs=1e-12)
    looped = build_looped(case.theta, case.n, bits, case.constants).model()
    for prompts, tokens in zip(case.prompts.split(CHUNK), case.tokens.split(CHUNK), strict=True):
        assert torch.equal(cot.run_looped(looped, prompts, bits), tokens)


def test_sums_are_sums() -> None:
    prompts, sums = examples.all_additions(bits=4)
    row = 11 * 2**4 + 6
    assert [WORDS[token] for token in prompts[row]] == list("1011+0110=")
    assert [WORDS[token] for token in sums[row]] == ["1c0", "0c1", "0c1", "0c1"]  # 17 is 10001
    for (a, b), answer in zip(((a, b) for a in range(16) for b in range(16)), sums.tolist(), strict=True):
        totals = [token - FIRST_SUM for token in answer]
        assert sum((total % 2) << j for j, total in enumerate(totals)) + ((totals[-1] // 2) << 4) == a + b


def test_chain_of_thought_is_the_papers_recursion(wordy: Case) -> None:
    """TF^i(v) = TF^(i-1)(v, TF(v)), TF^1 = TF."""
    model = wordy.theta.model()

    @torch.no_grad()
    def power(i: int, v: Tensor) -> Tensor:
        first = model(v)[:, -1].argmax(-1, keepdim=True)
        return first if i == 1 else power(i - 1, torch.cat((v, first), dim=1))

    for i in range(1, wordy.m + 1):
        assert torch.equal(power(i, wordy.prompts)[:, 0], wordy.tokens[:, wordy.n + i - 1])
    assert len(wordy.tokens.unique(dim=0)) == 64
    assert len(wordy.tokens[:, wordy.n :].unique(dim=0)) > 15  # or there would be little to simulate


def test_the_mask_holds_back_what_is_settled(wordy: Case) -> None:
    model = build_masked(wordy.theta, wordy.n, wordy.m, wordy.constants).model()
    states = [model.embed(cot.with_dummies(wordy.prompts, wordy.m, len(wordy.theta.tokens)))]
    states += cot.masked_states(model, wordy.prompts, wordy.m)
    for t in range(1, wordy.m + 1):
        settled = wordy.n + t - 1
        assert torch.equal(states[t][:, :settled], states[t - 1][:, :settled])
        expected = model.embed(wordy.tokens)[:, settled]
        torch.testing.assert_close(states[t][:, settled], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("later", "right"), [(0, True), (1, False), (-1, False)])
@torch.no_grad()
def test_the_mask_is_right_as_printed(later: int, right: bool, addition: Case) -> None:
    model = build_masked(addition.theta, addition.n, addition.m, addition.constants).model()
    x = model.embed(cot.with_dummies(addition.prompts, addition.m, len(addition.theta.tokens)))
    for t in range(1, addition.m + 1):
        changed = cot.mask(addition.n + addition.m, addition.n + later, t)
        x = torch.where(changed[:, None], model.iterate(x, loops=1), x)
    assert torch.equal(model.readout(x).argmax(-1), addition.tokens) == right


@pytest.mark.parametrize("factor", [0.0, -1.0])
@pytest.mark.parametrize("name", STRUCTURAL)
def test_every_constant_is_needed(name: str, factor: float, addition: Case, wordy: Case) -> None:
    for case in (addition, wordy):
        changed = replace(case.constants, **{name: factor * getattr(case.constants, name)})
        built = build_looped(case.theta, case.n, case.m, changed)
        assert not all_right(case, built)
        # a counter that stands still keeps the mask at 1[i > n], which is enough for the tokens
        assert tokens_right(case, built) == (name == "increment" and factor == 0)


def head_with(layer: FormalLayer, h: int, **weights: Tensor) -> FormalLayer:
    heads: list[Head] = list(layer.heads)
    heads[h] = replace(heads[h], **weights)
    return replace(layer, heads=tuple(heads))


def mutants(built: FormalTransformer, case: Case, factor: float) -> dict[str, FormalTransformer]:
    """One group of weights of what is new times ``factor``; what is zero anyway is left out."""

    def with_layer(at: int, layer: FormalLayer) -> FormalTransformer:
        return replace(built, layers=(*built.layers[:at], layer, *built.layers[at + 1 :]))

    found = {"output": replace(built, output=factor * built.output)}
    first, second = len(built.layers) - 2, len(built.layers) - 1
    for at in (first, second):
        (head,) = built.layers[at].heads
        for kind in ("query", "key", "value", "output"):
            weights = {kind: factor * getattr(head, kind)}
            found[f"layer {at} {kind}"] = with_layer(at, head_with(built.layers[at], 0, **weights))
    for at, name in ((first, "L+1"), (second, "L+2")):
        for kind in ("W1", "b1", "W2", "b2"):
            weight = getattr(built.layers[at], kind)
            if weight.any():
                found[f"{name} {kind}"] = with_layer(at, replace(built.layers[at], **{kind: factor * weight}))
    space = cot.coordinates(case.theta, case.n, case.m, "counter")
    for kind, names in (("tokens", ("x", "token")), ("positions", ("one", "x", "position", "i", "f", "count"))):
        for name in names:
            embedding = getattr(built, kind).clone()
            embedding[:, space[name]] *= factor
            found[f"{kind} {name}"] = replace(built, **{kind: embedding})
    return found


@pytest.mark.parametrize("factor", [0.0, -1.0])
def test_every_group_of_weights_is_needed(factor: float, addition: Case, wordy: Case) -> None:
    for case in (addition, wordy):
        built = build_looped(case.theta, case.n, case.m, case.constants)
        assert all_right(case, built)
        found = mutants(built, case, factor)
        assert len(found) == 24
        assert [name for name, mutant in found.items() if all_right(case, mutant)] == []


RECORDED = {"addition": Thresholds(1.14, 1.24), "wordy": Thresholds(4.26, 2.42)}


@pytest.mark.parametrize("name", RECORDED)
def test_thresholds(name: str, request: pytest.FixtureRequest) -> None:
    case: Case = request.getfixturevalue(name)
    found = thresholds(case)
    assert (found.beta, found.gap) == pytest.approx((RECORDED[name].beta, RECORDED[name].gap), rel=0.02)
    for changed in ({"beta": 0.98 * found.beta}, {"gap": 1.02 * found.gap * case.gap}):
        built = build_looped(case.theta, case.n, case.m, replace(case.constants, **changed))
        assert not tokens_right(case, built)


def test_one_gap_is_enough(wordy: Case, addition: Case) -> None:
    for case in (wordy, addition):
        tight = replace(case.constants, gap=case.gap)
        assert tokens_right(case, build_looped(case.theta, case.n, case.m, tight))


def test_the_hidden_state_is_the_wrong_place_to_read(wordy: Case) -> None:
    built = build_looped(wordy.theta, wordy.n, wordy.m, wordy.constants)
    x = cot.coordinates(wordy.theta, wordy.n, wordy.m, "counter").read("x")
    assert not tokens_right(wordy, replace(built, output=torch.cat((wordy.theta.output @ x, built.output[-1:]))))


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 6), more_loops=st.integers(0, 5), data=st.data())
def test_without_a_counter_one_model_serves_every_length(n: int, more_loops: int, data: st.DataObject) -> None:
    m = data.draw(st.integers(1, 7 - n))
    theta, model = uncounted_for_seven()
    case = Case(theta, all_words(3, n), m)
    ids = cot.with_dummies(case.prompts, m, dummy=3)
    with torch.no_grad():
        assert torch.equal(model(ids, loops=m + more_loops).argmax(-1), case.tokens)


@cache
def uncounted_for_seven() -> tuple[FormalTransformer, LoopedTransformer]:
    """A transformer, and its simulation for up to 7 positions."""
    theta = random_transformer((0, 1), seed=3, vocabulary=3, n_max=7)
    gap = min(Case(theta, all_words(3, k), 7 - k).gap for k in range(1, 7))
    assert gap > 1e-6
    return theta, build_uncounted(theta, 3, 4, Constants(gap=gap / 2)).model()


@pytest.mark.parametrize(("n", "m"), [(0, 3), (3, 0), (8, 4)])
def test_sizes_that_cannot_be(n: int, m: int, addition: Case) -> None:
    wrong = {(0, 3): "n=0: allowed is 1 or more", (3, 0): "m=0: allowed is 1 or more", (8, 4): r"n\+m=12: .* to 11"}
    for build, _ in BUILT:
        with pytest.raises(InputError, match=wrong[n, m]):
            build(addition.theta, n, m)
    with pytest.raises(InputError, match="bits=0: allowed is 1 or more"):
        examples.build_addition(0)


def test_prove(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_of_thought_proof, "RANDOM_SHAPES", RANDOM_SHAPES[:2])
    proof = prove(bits=3, seed=1, show=True, name="S3")
    assert proof.exact
    inputs = {check.what: check.cases for check in proof.checks}
    assert inputs["addition, 1 to 3 bits: looped"] == 4 + 16 + 64
    assert inputs["random transformers: looped"] == 3**5 + 6**3
    sizes = {size.name: size for size in proof.sizes}
    assert (sizes["loops"].claimed, sizes["loops"].actual) == (3, 3)
    assert (sizes["embedding size d"].claimed, sizes["embedding size d"].actual) == (15 + 3 * 4, 68)
    assert not sizes["embedding size d"].as_claimed
    chain, looped, *of_s3 = proof.traces
    s3 = group("S3")
    word = [s3.index(name) for name in of_s3[0].rows[0][1][:4]]
    product = s3.elements[s3.product(*word)]
    assert [trace.rows[-1][1][-1] for trace in of_s3] == [product, product]  # Figure 4, both halves
    assert [row[1][10:] for row in chain.rows] == [
        ("", "", "", ""),
        ("1c0", "", "", ""),
        ("1c0", "0c1", "", ""),
        ("1c0", "0c1", "0c1", ""),
        ("1c0", "0c1", "0c1", "0c1"),
    ]
    assert [
        row[1][10:] for row in looped.rows
    ] == [  # first each # adds its own bits at once, and the carry arrives later
        ("#", "#", "#", "#"),
        ("1c0", "0c1?", "1c0?", "1c0?"),
        ("1c0", "0c1", "0c1?", "1c0?"),
        ("1c0", "0c1", "0c1", "0c1?"),
        ("1c0", "0c1", "0c1", "0c1"),
    ]
    for trace in proof.traces[:2]:
        assert {row[1][:10] for row in trace.rows} == {tuple("1011+0110=")}
