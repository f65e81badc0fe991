"""The appendix's lemmas hold, with the repairs their docstrings name."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loopt.theory.formal import zeros
from loopt.theory.gates import Network, signed_binary
from loopt.theory.lemmas import (
    argmax_network,
    control_gate,
    decode_embed_network,
    one_hot_codes,
    shift_codes,
    shift_head,
    shift_space,
)
from loopt.theory.precision import MOST_BITS, FixedPoint, attention


def numbers_of(s: int) -> st.SearchStrategy[float]:
    return st.one_of(st.integers(-3, 3), st.integers(-(4**s) + 1, 4**s - 1)).map(lambda k: k * 2.0**-s)


def every_number(s: int) -> Tensor:
    return torch.arange(-(4**s) + 1, 4**s, dtype=torch.float64) * 2.0**-s


def weights_in_precision(network: Network, s: int) -> bool:
    return all(FixedPoint(s).contains(tensor) for layer in network.layers for tensor in layer)


@pytest.mark.parametrize("s", range(1, MOST_BITS + 1))
def test_exponentials_of_the_largest(s: int) -> None:
    F = FixedPoint(s)
    both = torch.tensor([-F.largest, F.largest], dtype=torch.float64)
    assert F.exp(both).tolist() == [0.0, F.largest]


@pytest.mark.parametrize("s", [1, 2, 3, 8])
@pytest.mark.parametrize("bits", [1, 2, 3, 6, 8])
def test_one_hot_attention_at_any_precision(bits: int, s: int) -> None:
    """The paper has s bits at precision s; the number of bits and s need nothing of each other."""
    F = FixedPoint(s)
    queries, keys = one_hot_codes(torch.arange(2**bits), bits, s)
    assert torch.equal(F.exp(F.matmul(queries, keys.T)), torch.eye(2**bits, dtype=torch.float64))


@pytest.mark.parametrize(("bits", "one_hot"), [(1, True), (2, False), (3, False), (6, False)])
def test_one_hot_attention_needs_the_interleaving(bits: int, one_hot: bool) -> None:
    """The same numbers with the ones in a block of their own: the same for 1 bit, wrong from 2 on."""
    F = FixedPoint(3)
    queries, keys = (
        torch.cat([code[:, ::2], code[:, 1::2]], dim=1) for code in one_hot_codes(torch.arange(2**bits), bits, 3)
    )
    found = F.exp(F.matmul(queries, keys.T))
    assert torch.equal(found, torch.eye(2**bits, dtype=torch.float64)) == one_hot


def shifted(n: int, s: int) -> tuple[Tensor, Tensor]:
    """x of positions 1 … n, and what the head makes of it in F_s."""
    x = FixedPoint(s).round(torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(n)))
    held = torch.cat([x, shift_codes(n)], dim=-1)
    return x, attention(FixedPoint(s), shift_head(3, n, s), held[None])[0][:, shift_space(3, n)["x"]]


@pytest.mark.parametrize("s", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 33, 64])
def test_shift(n: int, s: int) -> None:
    x, found = shifted(n, s)
    assert torch.equal(found, x[[0, *range(n - 1)]])
    assert shift_space(3, n).size == 3 + 2 * ((n - 1).bit_length() + 1)  # two codes of ⌈log2 n⌉ + 1 bits


def test_shift_over_the_reals() -> None:
    n, s = 20, 5
    head, x = shift_head(3, n, s), torch.randn(n, 3, dtype=torch.float64)
    held = torch.cat([x, shift_codes(n)], dim=-1)
    scores = (held @ head.query.T) @ (held @ head.key.T).T
    weights = scores.masked_fill(torch.ones(n, n).triu(1) == 1, -torch.inf).softmax(-1)
    torch.testing.assert_close(weights @ x, x[[0, *range(n - 1)]], rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("s", [1, 2, 3, 6])
@pytest.mark.parametrize("d", [2, 3, 7])
@settings(deadline=None)
@given(st.data())
def test_argmax(s: int, d: int, data: st.DataObject) -> None:
    network = argmax_network(d, s)
    assert len(network.layers) == 3
    assert max(network.widths) <= d**2
    assert weights_in_precision(network, s)
    others = data.draw(st.lists(numbers_of(s).filter(lambda x: x < 2.0**s - 2.0**-s), min_size=d - 1, max_size=d - 1))
    above = round(max(others) * 2**s) + 1
    largest = data.draw(st.integers(above, 4**s - 1)) * 2.0**-s
    k = data.draw(st.integers(0, d - 1))
    x = torch.tensor([[*others[:k], largest, *others[k:]]], dtype=torch.float64)
    expected = torch.eye(d, dtype=torch.float64)[k : k + 1]
    assert torch.equal(network(x), expected)
    assert torch.equal(network.at(s, x), expected)


@pytest.mark.parametrize("s", [1, 2])
def test_argmax_of_every_pair(s: int) -> None:
    pairs = torch.cartesian_prod(every_number(s), every_number(s))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    expected = torch.eye(2, dtype=torch.float64)[pairs.argmax(-1)]
    network = argmax_network(2, s)
    assert torch.equal(network(pairs), expected)
    assert torch.equal(network.at(s, pairs), expected)


def test_factor_of_argmax() -> None:
    """2^s is not in F_s; B_s in its place rounds to 1 from s = 2 on only."""
    assert not FixedPoint(3).contains(torch.tensor(2.0**3))
    made = [FixedPoint(s).multiply(torch.tensor(2.0**-s), torch.tensor(2.0**s - 2.0**-s)).item() for s in (1, 2, 3, 9)]
    assert made == [0.5, 1, 1, 1]


@pytest.mark.parametrize("s", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(8))
def test_decoding_and_embedding(s: int, seed: int) -> None:
    F, d, size, generator = FixedPoint(s), 3, 5, torch.Generator().manual_seed(seed)
    output, tokens, x = (
        F.round(torch.randn(rows, d, dtype=torch.float64, generator=generator) * 2 ** (s / 2))
        for rows in (size, size, 400)
    )
    network = decode_embed_network(output, tokens, s)
    assert len(network.layers) == 5
    assert max(network.widths) <= size**2
    assert weights_in_precision(network, s)
    for logits, found in ((F.matmul(x, output.T), network.at(s, x)), (x @ output.T, network(x))):
        best, second = logits.topk(2).values.unbind(-1)
        unique = best - second >= F.step  # over the reals the second may be nearer
        assert unique.sum() > 100
        expected = tokens[logits.argmax(-1)][unique]
        torch.testing.assert_close(found[unique], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("s", [1, 2, 3])
def test_control_gate_on_everything(s: int) -> None:
    network = control_gate(s)
    assert network.widths == (4,)
    assert weights_in_precision(network, s)
    x, y, M = torch.cartesian_prod(every_number(s), every_number(s), torch.tensor([0.0, 1.0]).double()).unbind(-1)
    inputs, expected = torch.stack([x, y, M, 1 - M], dim=-1), torch.where(M == 1, x, y)[:, None]
    assert torch.equal(network(inputs), expected)
    assert torch.equal(network.at(s, inputs), expected)


@pytest.mark.parametrize("s", [2, 3])
def test_control_gate_cannot_make_its_complement_by_a_bias(s: int) -> None:
    """As printed, with 1 - M made of M and a bias: right over the reals, saturated in F_s."""
    B = FixedPoint(s).largest
    ((W1, _), last) = control_gate(s).layers
    by_bias = torch.cat([W1[:, :2], W1[:, 2:3] - W1[:, 3:]], dim=1), torch.tensor([-B, -B, 0, 0], dtype=torch.float64)
    printed = Network((by_bias, last))
    inputs = torch.tensor([[1.5, -0.5, 1.0], [1.5, -0.5, 0.0]], dtype=torch.float64)
    assert printed(inputs).flatten().tolist() == [1.5, -0.5]
    assert printed.at(s, inputs).flatten().tolist() != [1.5, -0.5]


@pytest.mark.parametrize("factor", [0.0, -1.0])
@pytest.mark.parametrize("name", ["argmax", "decode", "control"])
def test_every_matrix_and_bias_counts(name: str, factor: float) -> None:
    s, x = 3, FixedPoint(3).round(torch.randn(200, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    if name == "control":
        network, M = control_gate(s), (x[:, 2:3] > 0).double()
        x = torch.cat([x[:, :2], M, 1 - M], dim=-1)
    elif name == "argmax":
        network = argmax_network(4, s)
    else:
        network = decode_embed_network(torch.eye(4, dtype=torch.float64), 2 * torch.eye(4, dtype=torch.float64), s)
    for i, (W, b) in enumerate(network.layers):
        for changed in [(factor * W, b), *([(W, factor * b)] if b.any() else [])]:
            broken = Network((*network.layers[:i], changed, *network.layers[i + 1 :]))
            assert not torch.equal(broken.at(s, x), network.at(s, x))


@pytest.mark.parametrize("part", ["query", "key", "value", "output"])
@pytest.mark.parametrize("factor", [0.0, -1.0])
def test_every_part_of_the_shift_counts(part: str, factor: float) -> None:
    n, s = 9, 3
    head, F = shift_head(3, n, s), FixedPoint(s)
    x = F.round(torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    held = torch.cat([x, shift_codes(n)], dim=-1)[None]
    broken = type(head)(
        **{name: getattr(head, name) * (factor if name == part else 1) for name in ("query", "key", "value", "output")}
    )
    assert not torch.equal(attention(F, broken, held), attention(F, head, held))


def test_a_network_of_one_layer_is_its_affine_map() -> None:
    network = Network(((2 * torch.eye(2, dtype=torch.float64), zeros(2) + 1),))
    assert network(torch.tensor([[1.0, -2.0]])).tolist() == [[3, -3]]
    assert network.at(4, torch.tensor([[1.0, -9.0]])).tolist() == [[3, -15.9375 + 1]]
    assert network.widths == ()
    assert signed_binary(torch.tensor([0]), 2).tolist() == [[-1, -1]]
