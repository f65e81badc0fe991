"""What is kept of a run through the loops is what the model computes."""

from __future__ import annotations

import math
import time

import pytest
import torch

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.analysis import answers_by_loop
from loopt.analysis.latents import Latents, look_inside, states_by_step

TOKENS = [3, 1, 4, 1, 5, 0]


def build(plan: str, **options: object) -> LoopedTransformer:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_heads": 4, "d_ff": 24, "vocab_size": 7, "max_len": 8} | options
    return LoopedTransformer(ModelConfig(LoopPlan.parse(plan), **sizes)).eval()  # type: ignore[arg-type]


@pytest.mark.parametrize(("plan", "loops"), [("2x3", 5), ("1x(1,3,1)", None), ("1x(1,3,2*)", 4)])
def test_answers_are_those_of_thoughts(plan: str, loops: int | None) -> None:
    model = build(plan)
    inside, thoughts = look_inside(model, TOKENS, loops, top=2), answers_by_loop(model, TOKENS, loops, top=2)
    assert inside.by == "loop"
    assert [one.choices for one in inside.answers] == [one.choices for one in thoughts]
    for one, other in zip(inside.answers, thoughts, strict=True):
        assert torch.tensor(one.probabilities) == pytest.approx(torch.tensor(other.probabilities), abs=1e-6)
        assert one.entropy == pytest.approx(other.entropy, abs=1e-5)


def test_without_loops_a_step_is_a_layer_and_the_last_is_the_model() -> None:
    model = build("3x1")
    inside = look_inside(model, TOKENS)
    assert (inside.by, inside.trained, len(inside.answers)) == ("layer", 3, 3)
    said = model(torch.tensor([TOKENS]))[0].softmax(-1).max(-1)
    assert [row[0] for row in inside.answers[-1].choices] == said.indices.tolist()
    assert [row[0] for row in inside.answers[-1].probabilities] == pytest.approx(said.values.tolist())


@pytest.mark.parametrize("options", [{}, {"n_kv_heads": 2}, {"positions": "learned"}], ids=str)
def test_attention_is_causal_and_sums_to_one(options: dict[str, object]) -> None:
    inside = look_inside(build("2x2", **options), TOKENS, looks=len(TOKENS))
    assert inside.looked_at.shape == (2, 2, 4, 6, 6)
    assert inside.look_weights.sum(-1) == pytest.approx(torch.ones(2, 2, 4, 6), abs=1e-5)
    own = torch.arange(6)[:, None]
    assert not inside.look_weights[(inside.looked_at > own).expand_as(inside.look_weights)].any()


def test_a_first_layer_looks_where_its_queries_and_keys_say() -> None:
    model = build("1x1", positions="learned")
    weights = look_inside(model, TOKENS, looks=6)
    layer = model.loop.layers[0]
    x = layer.attention_norm(model.embed(torch.tensor([TOKENS])))[0]  # type: ignore[operator]
    qkv = layer.attention.qkv(x).view(6, 12, 4)  # type: ignore[union-attr, operator]
    for head in range(4):
        scores = qkv[:, head] @ qkv[:, 4 + head].T / math.sqrt(4)
        expected = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -math.inf).softmax(-1)
        found = torch.zeros(6, 6).scatter(1, weights.looked_at[0, 0, head], weights.look_weights[0, 0, head])
        assert found == pytest.approx(expected.detach(), abs=1e-5)


def test_a_start_token_is_read_but_not_shown() -> None:
    model = build("1x3")
    with_start, plain = look_inside(model, TOKENS, start=2), look_inside(model, [2, *TOKENS])
    assert [one.choices for one in with_start.answers] == [one.choices[1:] for one in plain.answers]
    assert torch.equal(with_start.states, plain.states[:, 1:])
    assert with_start.looked_at.max() < len(TOKENS)


def test_states_are_those_of_the_walk() -> None:
    model = build("2x3")
    states = look_inside(model, TOKENS).states
    for state, normed in zip(states, states_by_step(model, torch.tensor([TOKENS])), strict=True):
        assert model.final_norm(state.float()).detach() == pytest.approx(normed[0], abs=1e-5)


def latents_of(path: torch.Tensor) -> Latents:
    states = path[:, None].double()  # one position
    return Latents("loop", len(path) - 1, [], states, torch.zeros(0), torch.zeros(0))


def test_settling_cycling_and_moving_on_are_told_apart() -> None:
    angle = torch.arange(9) * math.pi
    assert latents_of(torch.stack([angle.cos(), angle.sin()], 1)).movement(0) == "cycles with period 2"
    angle = torch.arange(13) * 2 * math.pi / 3
    assert latents_of(torch.stack([angle.cos(), angle.sin()], 1)).movement(0) == "cycles with period 3"
    settling = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 1.0], [0.5, 1.001], [0.5, 1.001]])
    assert latents_of(settling).movement(0) == "settled after loop 2"
    assert latents_of(torch.eye(5)).movement(0) == "still moving after loop 4"
    assert latents_of(torch.ones(4, 2)).movement(0) == "never moves"
    drifting = torch.stack([torch.arange(65.0), torch.zeros(65)], 1)
    assert latents_of(drifting).movement(0) == "still moving after loop 64"


def test_what_stays_the_same_all_along_does_not_make_a_state_settle() -> None:
    for path, told in (
        (torch.eye(5), "still moving after loop 4"),
        (torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 1.0], [0.5, 1.0]]), "settled after loop 2"),
    ):
        constant = torch.full((len(path), 1), 1000.0)
        assert latents_of(torch.cat([path, constant], 1)).movement(0) == told


def test_change_and_cosine_by_hand() -> None:
    found = latents_of(torch.tensor([[3.0, 0.0], [3.0, 4.0], [6.0, 8.0]]))
    assert found.change()[:, 0].tolist() == pytest.approx([4 / 3, 1.0])
    assert found.cosine()[:, 0].tolist() == pytest.approx([0.6, 1.0])


def test_the_plane_keeps_the_distances_of_states_that_lie_in_one() -> None:
    torch.manual_seed(1)
    flat = torch.randn(6, 4, 2).double() @ torch.randn(2, 9).double()
    orbit, shares = Latents("loop", 5, [], flat, torch.zeros(0), torch.zeros(0)).orbit()
    assert torch.cdist(orbit.flatten(0, 1), orbit.flatten(0, 1)) == pytest.approx(
        torch.cdist(flat.flatten(0, 1), flat.flatten(0, 1)), abs=1e-5
    )
    assert sum(shares) == pytest.approx(1.0)
    assert shares[0] >= shares[1]


def test_it_ends_in_time() -> None:
    with pytest.raises(TimeoutError):
        look_inside(build("1x3"), TOKENS, deadline=time.monotonic() - 1)
