"""Theorem 5.1: one layer, looped ⌈log2 n⌉ times, composes n elements of any finite group.

The input is #, g_1, …, g_n, where # at position 0 stands for the identity e. In every loop position i composes the
elements that positions [2i-n-1]_+ and [2i-n]_+ hold, which halves the word and keeps it at the right end:

>>> for held in algorithm(["", "a", "b", "c", "d", "e"], lambda left, right: left + right):
...     print(held)
['', 'a', 'b', 'c', 'd', 'e']
['', '', '', 'a', 'bc', 'de']
['', '', '', '', 'a', 'bcde']
['', '', '', '', '', 'abcde']

``build_group_composition`` builds this over the reals, ``build_in_precision`` in F_s, with an s that does not grow with
n. With m = ⌈log2 |G|⌉ bits to an element and p = ⌈log2(n+1)⌉ bits to a position, position i holds

    element        m bits  ḡ_i
    here           p bits  i
    left           p bits  [2i-n-1]_+
    right          p bits  [2i-n]_+
    left_element   m bits  ḡ', which head 1 fetches from left
    right_element  m bits  ḡ'', which head 2 fetches from right

Bits are ±1; g' and g'' are 0 except between attention and feed-forward. Token k is element k, and token |G| is #.

>>> from loopt.tasks import groups
>>> s3 = groups.group("S3")
>>> composer = build_group_composition(s3, n=3)
>>> composer.d, composer.d_ff, composer.plan.depth
(15, 54, 2)
>>> word = [s3.index(name) for name in ("(1 2)", "(2 3)", "(1 3)")]
>>> answers(composer.model(), s3, torch.tensor([word])).tolist() == [s3.product(*word)]
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from loopt.model import LoopedTransformer
from loopt.plan import LoopPlan
from loopt.tasks.groups import Group
from loopt.theory import precision
from loopt.theory.formal import FormalLayer, FormalTransformer, Head, Space, zeros
from loopt.theory.gates import signed_binary
from loopt.theory.lemmas import interleaved
from loopt.theory.precision import FixedPoint

Held = TypeVar("Held")


def algorithm(word: Sequence[Held], compose: Callable[[Held, Held], Held]) -> list[list[Held]]:
    """Returns what positions 0 … n hold at the start and after each loop by the paper's algorithm, for a ``word`` of
    e, g_1, …, g_n."""
    n = len(word) - 1
    held = [list(word)]
    for _ in range(loops(n)):
        g = held[-1]
        held.append([compose(g[max(2 * i - n - 1, 0)], g[max(2 * i - n, 0)]) for i in range(n + 1)])
    return held


def loops(n: int) -> int:
    """Returns T = ⌈log2 n⌉, but at least 1, since a looped model runs at least once."""
    return max(1, (n - 1).bit_length())


def bits_of_element(group: Group) -> int:
    """Returns m = ⌈log2 |G|⌉, but at least 1, which tells e from # in a group of one element."""
    return max(1, (group.order - 1).bit_length())


def bits_of_position(n: int) -> int:
    """Returns p = ⌈log2(n+1)⌉."""
    return n.bit_length()


@dataclass(frozen=True)
class Constants:
    """The numbers of the construction. With any of them 0 or negated it is wrong."""

    beta: float = 24.0
    """β, the factor on the keys. A bit that differs costs 2β, so a position whose number differs in one bit gets about
    e^-2β of the attention, an error that each loop multiplies. ``test_smallest_beta`` in
    tests/theory/test_group_composition.py measures how large β has to be. From 20 on attention is one-hot in float64,
    and n no longer matters."""
    query: float = 1.0
    """The factor on the queries. The paper has -1, which finds the position that differs most."""
    value: float = 1.0
    """The factor on the values."""
    incoming: float = 1.0
    """The weight of hidden unit (h, h') on the codes of h and h'."""
    threshold: float = 1.0
    """The activation of that unit when both codes are there: its bias is threshold - 2m·incoming."""
    outgoing: float = 1.0
    """The factor with which that unit writes the code of h∘h'."""
    erase: float = -1.0
    """The factor on x = relu(x) - relu(-x), which takes away the old element, g' and g''."""
    readout: float = 1.0
    """The factor on the codes in the output layer. The row of # is 0; as # has e's embedding, it would tie with e."""


@dataclass(frozen=True)
class FixedConstants(Constants):
    """The numbers of the construction in F_s, which needs three more."""

    one: float = 1.0
    """A constant in the first coordinate of g' at every position; b_2 restores it after each loop."""
    against: float = -1.0
    """The factor of that constant in the keys; in the queries it is 1 (Lemma E.3)."""
    logit_offset: float = -1.0
    """The weight of the constant in every row of the output layer, that of # too."""

    @classmethod
    def of(cls, group: Group, s: int) -> FixedConstants:
        """Returns constants that are right in F_s.

        Keys are as large as F_s allows (``test_smallest_key_in_precision`` measures what is enough). Sums of 2m bits
        have to stay below B_s, so hidden units count in steps of 2^-s: 2·2^-s when both codes are there, 0 when a bit
        is wrong. The offset makes the answer's logit 0, and the others so negative that they round to less."""
        F, m = FixedPoint(s), bits_of_element(group)
        readout = F.step * ((4**s - 1) // m)
        return cls(
            beta=F.largest,
            incoming=F.step,
            threshold=2 * F.step,
            outgoing=2.0 ** (s - 1),
            readout=readout,
            logit_offset=-m * readout,
        )


def residual_space(group: Group, n: int) -> Space:
    m, p = bits_of_element(group), bits_of_position(n)
    return Space(element=m, here=p, left=p, right=p, left_element=m, right_element=m)


def build_group_composition(group: Group, n: int, constants: Constants | None = None) -> FormalTransformer:
    """Builds one layer that, looped over the reals, composes n elements of ``group``."""
    c = constants or Constants()
    space, codes = residual_space(group, n), _codes(group)
    here = torch.arange(n + 1)
    positions = zeros(n + 1, space.size)
    for name, target in (("here", here), ("left", 2 * here - n - 1), ("right", 2 * here - n)):
        positions[:, space[name]] = signed_binary(target.clamp(min=0), bits_of_position(n))
    tokens = zeros(group.order + 1, space.size)
    tokens[:, space["element"]] = torch.cat([codes, codes[group.identity, None]])
    heads = tuple(  # the proof's first claim: the heads fetch g' and g''
        Head(
            query=c.query * space.read(target),
            key=c.beta * space.read("here"),
            value=c.value * space.read("element"),
            output=space.read(f"{target}_element"),
        )
        for target in ("left", "right")
    )
    output = zeros(group.order + 1, space.size)
    output[:-1, space["element"]] = c.readout * codes
    plan = LoopPlan.parse(f"1x{loops(n)}")
    return FormalTransformer(plan, tokens, positions, (_layer(group, space, heads, c),), output)


def build_in_precision(group: Group, n: int, s: int, constants: FixedConstants | None = None) -> FormalTransformer:
    """Builds the construction in F_s, of the same widths but for queries and keys, which are 2p wide.

    Before attention the first coordinate of g' holds a constant 1. Queries and keys interleaved with it make attention
    one-hot, and the biases of the hidden units make up for the 1 that is left in the coordinate.
    """
    c = constants or FixedConstants.of(group, s)
    real, space = build_group_composition(group, n, c), residual_space(group, n)
    (layer,) = real.layers
    where = space["left_element"].start
    one = torch.eye(space.size, dtype=torch.float64)[where]
    heads = tuple(
        replace(head, query=interleaved(head.query, one), key=interleaved(head.key, c.beta * c.against * one))
        for head in layer.heads
    )
    off_by_one = torch.where(torch.arange(len(layer.b1)) < group.order**2, c.one * layer.W1[:, where], 0.0)
    output = real.output + c.logit_offset * one
    held = real.positions + c.one * one
    made = replace(layer, heads=heads, b1=layer.b1 - off_by_one, b2=layer.b2 + c.one * one)
    return replace(real, positions=held, layers=(made,), output=output)


def _layer(group: Group, space: Space, heads: tuple[Head, ...], c: Constants) -> FormalLayer:
    """Adds the feed-forward of the proof's second claim, which writes g'∘g'' over g and empties g' and g''."""
    codes, m, pairs = _codes(group), bits_of_element(group), group.order**2
    slots = space.read("element", "left_element", "right_element")  # [3m, d]
    W1, b1, W2 = zeros(pairs + 6 * m, space.size), zeros(pairs + 6 * m), zeros(space.size, pairs + 6 * m)
    # hidden unit (h, h') has index h·|G| + h'
    W1[:pairs, space["left_element"]] = c.incoming * codes.repeat_interleave(group.order, dim=0)
    W1[:pairs, space["right_element"]] = c.incoming * codes.repeat(group.order, 1)
    b1[:pairs] = c.threshold - 2 * m * c.incoming
    W2[space["element"], :pairs] = c.outgoing * codes[group.tensor().flatten()].T
    # the other hidden units add -x
    W1[pairs:] = torch.cat([slots, -slots])
    W2[:, pairs:] = c.erase * W1[pairs:].T
    return FormalLayer(heads, W1, b1, W2, zeros(space.size))


def _codes(group: Group) -> Tensor:
    """Returns ḡ for every element: [|G|, m], ±1."""
    return signed_binary(torch.arange(group.order), bits_of_element(group))


@torch.no_grad()
def answers(model: LoopedTransformer, group: Group, words: Tensor) -> Tensor:
    """Returns the model's answers at the last position: [words, n] elements -> [words]."""
    run = _in_small_batches(group, words, lambda ids: model(ids)[:, -1])
    return torch.cat([logits.argmax(-1) for logits in run])


def answers_in_precision(formal: FormalTransformer, group: Group, words: Tensor, s: int) -> Tensor:
    """Returns the answers in F_s, output softmax included; -1 where several tokens share the largest probability."""
    run = _in_small_batches(group, words, lambda ids: precision.forward(formal, ids, s)[:, -1])
    found = []
    for logits in run:
        probabilities = FixedPoint(s).softmax(logits)  # [words, |G| + 1]
        best, token = probabilities.max(-1)
        alone = (probabilities == best[:, None]).sum(-1) == 1
        found.append(torch.where(alone, token, -1))
    return torch.cat(found)


def precision_of(group: Group) -> int:
    """Returns the s at which the construction in F_s is right, whatever n: hidden units count 2m+1 steps of 2^-s, which
    have to fit below B_s, and s = 1 is too little in any case.

    >>> from loopt.tasks import groups
    >>> [precision_of(groups.group(name)) for name in ("Z2", "S5", "Z150")]
    [2, 2, 3]
    """
    s = 2
    while 4**s < 2 * bits_of_element(group) + 2:
        s += 1
    return s


def some_words(group: Group, n: int, inputs: int, seed: int) -> Tensor:
    """Returns ``inputs`` random words, the identity n times and one other element n times: [inputs + 2, n]."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(group.order, (inputs, n), generator=generator)
    other = (group.identity + 1) % group.order
    return torch.cat([drawn, torch.full((1, n), group.identity), torch.full((1, n), other)])


def _in_small_batches(group: Group, words: Tensor, run: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
    """Yields ``run`` of #, g_1, …, g_n for a few words at a time, whose hidden units and scores take 64 MB each."""
    ids = torch.cat([torch.full((len(words), 1), group.order), words], dim=1)  # [words, n + 1]
    n = words.shape[1]
    hidden = ids.shape[1] * (group.order**2 + 6 * bits_of_element(group))
    yield from map(run, ids.split(max(1, 8_000_000 // max(hidden, numbers_in_scores(n)))))


def numbers_in_scores(n: int) -> int:
    """Returns how many numbers the attention of one word takes: two heads, scores and their softmax."""
    return 4 * (n + 1) ** 2
