"""The networks on bits, over the reals and in F_s, on every input where there are few enough."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loopt.theory.gates import (
    Network,
    and_gate,
    comparison,
    gate_inputs,
    increment,
    interleave,
    majority_gate,
    or_gate,
    signed_binary,
)
from loopt.theory.precision import FixedPoint


def every_word(n: int) -> Tensor:
    """[2^n, n] bits, 0 and 1."""
    return (signed_binary(torch.arange(2**n), n) + 1) / 2


def log2_up(n: int) -> int:
    return max(1, (n - 1).bit_length())


def conjunction(x: Tensor) -> Tensor:
    return (x == 1).all(-1)


def disjunction(x: Tensor) -> Tensor:
    return (x == 1).any(-1)


def majority(x: Tensor) -> Tensor:
    return 2 * x.sum(-1) > x.shape[-1]


GATES: dict[str, tuple[Callable[[int], Network], Callable[[Tensor], Tensor], int, Callable[[int], int]]] = {
    "and": (and_gate, conjunction, 1, lambda n: 1),
    "or": (or_gate, disjunction, 2, lambda n: 1),
    "majority": (majority_gate, majority, 4, log2_up),
}
"""The builder, what it computes, its hidden units, and the bits of precision that suffice."""


def agrees(network: Network, inputs: Tensor, expected: Tensor, s: int) -> bool:
    """Over the reals and in F_s."""
    return all(torch.equal(out, expected.double()) for out in (network(inputs), network.at(s, inputs)))


def in_precision(network: Network, s: int) -> bool:
    return all(FixedPoint(s).contains(tensor) for layer in network.layers for tensor in layer)


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("n", range(1, 11))
def test_gates_on_every_word(name: str, n: int) -> None:
    build, computes, width, precision = GATES[name]
    network, words = build(n), every_word(n)
    assert network.widths == (width,)
    assert not network.layers[-1][1].any()  # the lemma has no b_2
    for s in range(precision(n), precision(n) + 4):
        assert in_precision(network, s)
        assert agrees(network, gate_inputs(words), computes(words)[:, None], s)


@pytest.mark.parametrize("name", GATES)
@settings(deadline=None)
@given(st.data())
def test_gates_on_long_words(name: str, data: st.DataObject) -> None:
    """Blocks of equal bits drive the sums to where they saturate."""
    build, computes, _, precision = GATES[name]
    blocks = data.draw(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 100)), min_size=1, max_size=6))
    word = torch.tensor([[bit for bit, length in blocks for _ in range(length)]], dtype=torch.float64)
    network = build(word.shape[1])
    assert agrees(network, gate_inputs(word), computes(word)[:, None], precision(word.shape[1]))


@pytest.mark.parametrize("n", range(1, 17))
def test_fewest_bits_of_majority(n: int) -> None:
    words = every_word(n)
    right = [torch.equal(majority_gate(n).at(s, gate_inputs(words)), majority(words)[:, None].double()) for s in (1, 2)]
    assert right == [n <= 4, n <= 12]


@pytest.mark.parametrize("s", range(1, 8))
def test_majority_needs_a_logarithm_of_bits(s: int) -> None:
    """Zeros take the sum to where it saturates; as many ones then bring it above 0."""
    half = 2 ** (s + 1)
    word = torch.tensor([[0.0] * half + [1.0] * half])
    assert majority_gate(2 * half).at(s, gate_inputs(word)).item() > 0
    assert majority_gate(2 * half).at(s + 1, gate_inputs(word)).item() == 0


@pytest.mark.parametrize("bits", range(1, 11))
def test_increment(bits: int) -> None:
    network, x = increment(bits), torch.arange(2**bits - 1)
    assert len(network.layers) == 3
    assert max(network.widths) == 4 * bits
    assert in_precision(network, bits)
    assert agrees(network, signed_binary(x, bits), signed_binary(x + 1, bits), bits)
    counted = signed_binary(x[:1], bits)
    for number, following in pairwise(range(2**bits if bits < 8 else 0)):  # again and again, in F_s
        assert torch.equal(counted, signed_binary(torch.tensor([number]), bits))
        counted = network.at(bits, counted)
        assert torch.equal(counted, signed_binary(torch.tensor([following]), bits))


@pytest.mark.parametrize("bits", range(1, 9))
def test_comparison(bits: int) -> None:
    network = comparison(bits)
    assert network.widths == (2 * bits, bits)
    assert in_precision(network, bits)
    x, y = torch.cartesian_prod(torch.arange(2**bits), torch.arange(2**bits)).unbind(-1)
    both = torch.cat([signed_binary(x, bits), signed_binary(y, bits)], dim=-1)
    assert agrees(network, both, (x > y)[:, None], bits)


def test_printed_comparison_reads_the_wrong_bits() -> None:
    """With "j < i" and the least significant bit first, 2 > 1 is missed."""

    def printed(x: list[bool], y: list[bool]) -> bool:
        return any(x[i] and not y[i] and x[:i] == y[:i] for i in range(len(x)))

    two, one = [False, True], [True, False]
    assert not printed(two, one)
    assert printed(two[::-1], one[::-1])


@pytest.mark.parametrize("s", [1, 2, 3])
def test_interleaving_with_ones_is_what_keeps_and_to_one_bit(s: int) -> None:
    """The same sum with all the ones last saturates."""
    n = 30
    words = torch.cat([torch.ones(1, n), torch.ones(1, n).index_fill(1, torch.tensor([3]), 0)])
    in_blocks = torch.cat([words, torch.ones(2, n)], dim=1)
    (W1, b1), last = and_gate(n).layers
    blocks = Network(((torch.cat([W1[:, ::2], W1[:, 1::2]], dim=1), b1), last))
    assert torch.equal(blocks(in_blocks), conjunction(words)[:, None].double())
    assert not torch.equal(blocks.at(s, in_blocks), conjunction(words)[:, None].double())


def test_interleave() -> None:
    assert interleave(torch.tensor([1, 2]), torch.tensor([3, 4])).tolist() == [1, 3, 2, 4]


@pytest.mark.parametrize("factor", [0.0, -1.0])
@pytest.mark.parametrize("name", [*GATES, "increment", "comparison"])
def test_every_matrix_and_bias_counts(name: str, factor: float) -> None:
    if name in GATES:
        build, computes, _, precision = GATES[name]
        network, s = build(4), precision(4)
        inputs, expected = gate_inputs(every_word(4)), computes(every_word(4))[:, None]
    elif name == "increment":
        network, s, inputs = increment(3), 3, signed_binary(torch.arange(7), 3)
        expected = signed_binary(torch.arange(1, 8), 3)
    else:
        network, s = comparison(3), 3
        x, y = torch.cartesian_prod(torch.arange(8), torch.arange(8)).unbind(-1)
        inputs, expected = torch.cat([signed_binary(x, 3), signed_binary(y, 3)], dim=-1), (x > y)[:, None]
    assert agrees(network, inputs, expected, s)
    for i, layer in enumerate(network.layers):
        for part in range(2):
            if not layer[part].any():
                continue
            changed = (factor * layer[0], layer[1]) if part == 0 else (layer[0], factor * layer[1])
            broken = Network((*network.layers[:i], changed, *network.layers[i + 1 :]))
            assert not torch.equal(broken(inputs), expected.double())
            assert not torch.equal(broken.at(s, inputs), expected.double())
