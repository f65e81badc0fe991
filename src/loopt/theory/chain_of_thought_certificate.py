"""Theorem 5.4 for every θ and every input on which θ's best logit leads by δ; in F_s, by anything.

What layers 1 to L do to x is θ's own doing if their weights are θ's and touch nothing else. The heads of layers L+1 and
L+2 see positions alone, so n+m rows of attention settle them for every input and loop. What their feed-forwards make of
any logits is in ``chain_of_thought_feed_forwards``. So loop t leaves the tokens up to position n+t-1 as they are, and
makes θ's own at position n+t of its logits at n+t-1.

>>> from loopt.theory.chain_of_thought import build_looped
>>> from loopt.theory.examples import build_addition
>>> adder = build_addition(bits=2)
>>> certify(adder, build_looped(adder, n=6, m=2), n=6, m=2, lead=1.0).wrong
0
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopt.theory.certificates import one_hot
from loopt.theory.chain_of_thought import bits_for, coordinates
from loopt.theory.chain_of_thought_feed_forwards import certify_ranking, certify_writing
from loopt.theory.formal import FormalLayer, FormalTransformer, Head, Space, zeros
from loopt.theory.gates import signed_binary
from loopt.theory.precision import arithmetic, weight_outside
from loopt.theory.proof import Tally


def certify(
    theta: FormalTransformer, built: FormalTransformer, n: int, m: int, lead: float, s: int | None = None
) -> Tally:
    """Checks the construction over the reals or in F_s, for every input on which θ's best logit leads by ``lead``."""
    tally, space = Tally(), coordinates(theta, n, m, "counter")
    order = [step.layer for step in theta.plan.steps]
    loops = len(built.plan.passes)
    tally.holds(f"{loops} loops, should be {m}", loops == m)
    tally.holds("sizes", built.d == space.size and len(built.layers) == len(order) + 2)
    outside = "" if s is None else weight_outside(built, s)
    tally.holds(outside, not outside)
    if tally.wrong:
        return tally
    _embeddings(tally, theta, built, space, n, m)
    tally.equal("output layer", built.output, torch.cat([space.read("token"), zeros(1, space.size)]))
    for place, (index, layer) in enumerate(zip(order, built.layers, strict=False), start=1):
        _unchanged(tally, f"layer {place}", theta.layers[index], layer, space)
    i = torch.arange(n + m)
    score, x = (space.read(name) for name in ("score", "x"))
    before, itself = built.layers[-2].heads[0], built.layers[-1].heads[0]
    _looks(tally, "layer L+1", before, (i - 1).clamp(min=0), theta.output @ x, score, built, space, s)
    _looks(tally, "layer L+2", itself, i, space.read("position"), x, built, space, s)
    F = arithmetic(s)
    certify_ranking(tally, F, built, space, n, m, lead)
    certify_writing(tally, F, theta.tokens, built, space, n, m)
    return tally


def _embeddings(tally: Tally, theta: FormalTransformer, built: FormalTransformer, space: Space, n: int, m: int) -> None:
    x, token = space.read("x"), space.read("token")
    tokens = torch.cat([theta.tokens @ x + token, zeros(1, space.size)])  # nothing for #
    tally.equal("tokens", built.tokens, tokens)
    codes = signed_binary(torch.arange(1, n + m + 1), bits_for(n, m)) @ space.read("i")
    wanted = theta.positions[: n + m] @ (x + space.read("position")) + space.unit("one") + codes
    wanted += signed_binary(torch.tensor(n), bits_for(n, m)) @ space.read("count")
    but_f = space.read("f").sum(0) == 0  # where f leads is seen by attention
    tally.equal("positions", built.positions[:, but_f], wanted[:, but_f])


def _unchanged(tally: Tally, what: str, theirs: FormalLayer, ours: FormalLayer, space: Space) -> None:
    x = space.read("x")  # [d, size]
    tally.equal(f"{what}: W1", ours.W1, theirs.W1 @ x)
    tally.equal(f"{what}: b1", ours.b1, theirs.b1)
    tally.equal(f"{what}: W2", ours.W2.T, theirs.W2.T @ x)
    tally.equal(f"{what}: b2", ours.b2, theirs.b2 @ x)
    for h, (old, new) in enumerate(zip(theirs.heads, ours.heads, strict=True)):
        for part in ("query", "key", "value", "output"):
            tally.equal(f"{what}, head {h}: {part}", getattr(new, part), getattr(old, part) @ x)


def _looks(
    tally: Tally,
    what: str,
    head: Head,
    target: Tensor,
    value: Tensor,
    into: Tensor,
    built: FormalTransformer,
    space: Space,
    s: int | None,
) -> None:
    """Counts whether the head gives all weight to ``target`` [n+m], whatever the tokens, and adds the ``value`` [k,
    size] of what is there to the coordinates ``into`` [k, size]."""
    seen = torch.cat([space.read(name) for name in ("one", "i", "f")]).sum(0) > 0  # what no layer changes
    for part in ("query", "key"):
        reads = getattr(head, part)[:, ~seen]
        tally.equal(f"{what}: its {part} reads what changes", reads, torch.zeros_like(reads))
    F = arithmetic(s)
    queries, keys = (F.matmul(built.positions, weight.T) for weight in (head.query, head.key))
    one_hot(tally, f"{what}, attention", F, queries, keys, target, causal=True)
    tally.equal(f"{what}: values", head.value, value)
    tally.equal(f"{what}: where they go", head.output, into)
