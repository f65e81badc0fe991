"""The networks on binary numbers, over the reals and in F_s, on every input."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from loopt.theory.gates import Network, comparison, increment, interleave, signed_binary
from loopt.theory.precision import FixedPoint


def agrees(network: Network, inputs: Tensor, expected: Tensor, s: int) -> bool:
    """Tells whether the network is right over the reals and in F_s."""
    return all(torch.equal(out, expected.double()) for out in (network(inputs), network.at(s, inputs)))


def in_precision(network: Network, s: int) -> bool:
    return all(FixedPoint(s).contains(tensor) for layer in network.layers for tensor in layer)


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


def test_interleave() -> None:
    assert interleave(torch.tensor([1, 2]), torch.tensor([3, 4])).tolist() == [1, 3, 2, 4]


@pytest.mark.parametrize("factor", [0.0, -1.0])
@pytest.mark.parametrize("name", ["increment", "comparison"])
def test_every_matrix_and_bias_counts(name: str, factor: float) -> None:
    s = 3
    if name == "increment":
        network, inputs = increment(3), signed_binary(torch.arange(7), 3)
        expected = signed_binary(torch.arange(1, 8), 3)
    else:
        network = comparison(3)
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
