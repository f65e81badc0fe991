"""Theorem 5.4 for every input, as far as it goes: θ is there unchanged, and the two heads more look where they should.

What layers 1 to L do to x is θ's own doing if their weights are θ's and touch nothing else. The heads of layers L+1 and
L+2 see positions alone, so n+m rows of attention settle them for every input and loop. What their feed-forwards make of
logits is seen by running all prompts (``chain_of_thought_proof``).

>>> from loopt.theory.chain_of_thought import build_looped
>>> from loopt.theory.examples import build_addition
>>> adder = build_addition(bits=2)
>>> certify(adder, build_looped(adder, n=6, m=2), n=6, m=2).wrong
0
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopt.theory.certificates import one_hot
from loopt.theory.chain_of_thought import coordinates
from loopt.theory.formal import FormalLayer, FormalTransformer, Head, Space, zeros
from loopt.theory.precision import arithmetic, weight_outside
from loopt.theory.proof import Tally


def certify(theta: FormalTransformer, built: FormalTransformer, n: int, m: int, s: int | None = None) -> Tally:
    """Checks what does not depend on an input, over the reals or in F_s."""
    tally, space = Tally(), coordinates(theta, n, m, "counter")
    order = [step.layer for step in theta.plan.steps]
    loops = len(built.plan.passes)
    tally.holds(f"{loops} loops, should be {m}", loops == m)
    tally.holds("sizes", built.d == space.size and len(built.layers) == len(order) + 2)
    outside = "" if s is None else weight_outside(built, s)
    tally.holds(outside, not outside)
    if tally.wrong:
        return tally
    tally.equal("tokens: x", built.tokens[:-1, space["x"]], theta.tokens)
    tally.equal("tokens: which one", built.tokens[:-1, space["token"]], torch.eye(len(theta.tokens)).double())
    for name in ("x", "position"):
        tally.equal(f"positions: {name}", built.positions[:, space[name]], theta.positions[: n + m])
    tally.equal("output layer", built.output, torch.cat([space.read("token"), zeros(1, space.size)]))
    for place, (index, layer) in enumerate(zip(order, built.layers, strict=False), start=1):
        _unchanged(tally, f"layer {place}", theta.layers[index], layer, space)
    i = torch.arange(n + m)
    score, x = (space.read(name) for name in ("score", "x"))
    before, itself = built.layers[-2].heads[0], built.layers[-1].heads[0]
    _looks(tally, "layer L+1", before, (i - 1).clamp(min=0), score.T @ theta.output @ x, built, space, s)
    _looks(tally, "layer L+2", itself, i, x.T @ space.read("position"), built, space, s)
    return tally


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
    moves: Tensor,
    built: FormalTransformer,
    space: Space,
    s: int | None,
) -> None:
    """Counts whether the head gives all weight to ``target`` [n+m], whatever the tokens, and then adds ``moves`` x."""
    seen = torch.cat([space.read(name) for name in ("one", "i", "f")]).sum(0) > 0  # what no layer changes
    for part in ("query", "key"):
        reads = getattr(head, part)[:, ~seen]
        tally.equal(f"{what}: its {part} reads what changes", reads, torch.zeros_like(reads))
    F = arithmetic(s)
    queries, keys = (F.matmul(built.positions, weight.T) for weight in (head.query, head.key))
    one_hot(tally, f"{what}, attention", F, queries, keys, target, causal=True)
    tally.equal(f"{what}: values", head.output.T @ head.value, moves)
