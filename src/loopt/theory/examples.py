"""Transformers to try the theorems on: with random weights, for addition, and for group composition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from loopt.errors import InputError, require
from loopt.plan import LoopPlan
from loopt.tasks.binary_addition import FIRST_SUM, WORDS
from loopt.tasks.groups import Group
from loopt.theory.formal import FormalLayer, FormalTransformer, Head, Space, zeros
from loopt.theory.gates import signed_binary
from loopt.theory.group_composition import bits_of_element, bits_of_position, build_group_composition, residual_space
from loopt.theory.precision import FixedPoint


def random_transformer(
    order: Sequence[int],
    seed: int,
    d: int = 6,
    heads: int = 2,
    d_qk: int = 3,
    d_v: int = 3,
    d_ff: int = 7,
    vocabulary: int = 5,
    n_max: int = 16,
) -> FormalTransformer:
    """Builds L layers of random weights, where layer l is a copy of distinct layer ``order[l]``. What they write into
    the residual stream is divided by √(2L), so that activations stay bounded."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, size: float = 1.0) -> Tensor:
        return size * torch.randn(shape, dtype=torch.float64, generator=generator)

    written = (2 * len(order)) ** -0.5

    def layer() -> FormalLayer:
        return FormalLayer(
            heads=tuple(
                Head(
                    query=normal(d_qk, d, size=d**-0.5),
                    key=normal(d_qk, d, size=d**-0.5),
                    value=normal(d_v, d, size=d**-0.5),
                    output=normal(d_v, d, size=written * (heads * d_v) ** -0.5),
                )
                for _ in range(heads)
            ),
            W1=normal(d_ff, d, size=d**-0.5),
            b1=normal(d_ff),
            W2=normal(d, d_ff, size=written * d_ff**-0.5),
            b2=normal(d, size=written),
        )

    distinct = [layer() for _ in range(max(order) + 1)]
    return FormalTransformer(
        plan=LoopPlan.parse(f"{len(order)}x1"),
        tokens=normal(vocabulary, d),
        positions=normal(n_max, d),
        layers=tuple(distinct[r] for r in order),
        output=normal(vocabulary, d),
    )


def rounded(formal: FormalTransformer, s: int) -> FormalTransformer:
    """Returns the transformer with every weight rounded to F_s."""
    F = FixedPoint(s)

    def layer(one: FormalLayer) -> FormalLayer:
        heads = tuple(Head(*map(F.round, (h.query, h.key, h.value, h.output))) for h in one.heads)
        return FormalLayer(heads, F.round(one.W1), F.round(one.b1), F.round(one.W2), F.round(one.b2))

    tokens, positions, output = (F.round(weights) for weights in (formal.tokens, formal.positions, formal.output))
    return FormalTransformer(formal.plan, tokens, positions, tuple(map(layer, formal.layers)), output)


def all_words(vocabulary: int, n: int) -> Tensor:
    """Returns every input of n tokens, [vocabulary^n, n]."""
    return torch.cartesian_prod(*[torch.arange(vocabulary)] * n).view(-1, n)


# Two numbers added by chain of thought


def build_addition(bits: int) -> FormalTransformer:
    """Builds one layer θ that continues a_k…a_1 + b_k…b_1 = with the sum's bits and carries, least significant first.

    Position n+j-1 holds the carry of step j-1, and two heads add a_j and b_j to it. The logit of the sum r is
    2r·total - r², largest where r = total, by 1 over the next."""
    require(bits >= 1, "bits", bits, "1 or more", InputError)
    n, m = 2 * bits + 2, bits
    s = (n + m).bit_length()
    space = Space(bit=1, total=1, one=1, i=s, a=s, b=s)
    bit, total, one = (space.unit(name) for name in ("bit", "total", "one"))
    tokens = zeros(len(WORDS), space.size)
    tokens[1] = bit
    tokens[FIRST_SUM + 2 :] = total  # the two tokens with a carry
    i = torch.arange(1, n + m + 1)
    j = i - n + 1  # the step that position i decides about
    decides = (j >= 1) & (j <= m)
    codes = {"i": i, "a": torch.where(decides, bits + 1 - j, i), "b": torch.where(decides, 2 * bits + 2 - j, i)}
    positions = one + sum(signed_binary(where, s) @ space.read(name) for name, where in codes.items())
    heads = tuple(
        Head(query=20.0 * space.read(name), key=space.read("i"), value=bit[None], output=total[None]) for name in "ab"
    )
    layer = FormalLayer(heads, W1=zeros(1, space.size), b1=zeros(1), W2=zeros(space.size, 1), b2=zeros(space.size))
    output = torch.stack([-2 * one] * FIRST_SUM + [2 * r * total - r * r * one for r in range(4)])
    return FormalTransformer(LoopPlan.parse("1x1"), tokens, positions, (layer,), output)


def all_additions(bits: int) -> tuple[Tensor, Tensor]:
    """Returns all inputs for two numbers of ``bits`` bits, [4^bits, 2·bits+2], and the right tokens, computed by adding
    integers, [4^bits, bits]."""
    prompts, sums = [], []
    for a in range(2**bits):
        for b in range(2**bits):
            prompts.append([*_digits(a, bits)[::-1], 2, *_digits(b, bits)[::-1], 3])
            carries = [((a % 2**j) + (b % 2**j)) >> j for j in range(1, bits + 1)]
            answer = zip(_digits(a + b, bits), carries, strict=True)
            sums.append([FIRST_SUM + bit + 2 * carry for bit, carry in answer])
    return torch.tensor(prompts), torch.tensor(sums)


def _digits(number: int, bits: int) -> list[int]:
    return [number >> j & 1 for j in range(bits)]


def build_composing_chain(group: Group, n: int) -> FormalTransformer:
    """Builds one layer θ that continues g_1 … g_n = with the products g_1, g_1∘g_2, …, one token a step. Token |G| is =
    and stands for the empty product.

    Position n+t holds the product of t-1 elements and fetches g_t; the feed-forward has a unit for each pair, as in
    Theorem 5.1, and the output layer reads what it wrote."""
    require(n >= 1, "n", n, "1 or more", InputError)
    m, s = bits_of_element(group), (2 * n + 1).bit_length()
    space = Space(one=1, held=m, fetched=m, product=m, i=s, next=s)
    codes = signed_binary(torch.arange(group.order), m)  # [|G|, m]
    i = torch.arange(1, 2 * n + 2)
    target = torch.where((i > n) & (i < 2 * n + 1), i - n, i)
    positions = (
        space.unit("one") + signed_binary(i, s) @ space.read("i") + signed_binary(target, s) @ space.read("next")
    )
    head = Head(20.0 * space.read("next"), space.read("i"), space.read("held"), space.read("fetched"))
    left, right = codes.repeat_interleave(group.order, dim=0), codes.repeat(group.order, 1)  # [|G|², m] each
    layer = FormalLayer(
        heads=(head,),
        W1=left @ space.read("held") + right @ space.read("fetched"),
        b1=torch.full((group.order**2,), 1.0 - 2 * m, dtype=torch.float64),
        W2=(codes[group.tensor().flatten()] @ space.read("product")).T,
        b2=zeros(space.size),
    )
    tokens = torch.cat([codes, codes[group.identity, None]]) @ space.read("held")
    output = torch.cat([codes, zeros(1, m)]) @ space.read("product") - space.unit("one")  # m - 1 for the right one
    output[-1] -= m * space.unit("one")
    return FormalTransformer(LoopPlan.parse("1x1"), tokens, positions, (layer,), output)


def composition_by_prefixes(group: Group, n: int) -> FormalTransformer:
    """Builds a group composition of ⌈log2 n⌉ layers that is not looped: every layer has attention of its own.

    In layer l position i composes the element held 2^l positions before it with its own, and ends up with
    g_1 ∘ … ∘ g_i. The weights are those of Theorem 5.1 but for the positions that are looked up.
    """
    looped = build_group_composition(group, n)
    p, depth = bits_of_position(n), looped.plan.depth
    old = residual_space(group, n)
    kept = {name: old.read(name).shape[0] for name in ("element", "here", "left_element", "right_element")}
    new = Space(**kept, **{f"back {layer}": p for layer in range(depth)})
    into = sum((old.read(name).T @ new.read(name) for name in kept), zeros(old.size, new.size))  # [d, new d]

    (block,) = looped.layers
    left, right = (
        Head(head.query @ into, head.key @ into, head.value @ into, head.output @ into) for head in block.heads
    )
    same = replace(block, W1=block.W1 @ into, W2=into.T @ block.W2, b2=block.b2 @ into)
    layers, positions = [], looped.positions @ into
    for layer in range(depth):
        heads = (replace(left, query=new.read(f"back {layer}")), replace(right, query=new.read("here")))
        layers.append(replace(same, heads=heads))
        back = (torch.arange(n + 1) - 2**layer).clamp(min=0)
        positions[:, new[f"back {layer}"]] = signed_binary(back, p)
    plan = LoopPlan.parse(f"{depth}x1")
    return FormalTransformer(plan, looped.tokens @ into, positions, tuple(layers), looped.output @ into)
