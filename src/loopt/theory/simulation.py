"""Theorem 5.2: one layer, looped L times, computes what any L-layer transformer with R distinct layers computes.

The one layer has the heads and hidden units of all R layers side by side; in loop l those of layer r(l) are active and
the others idle. Beside its d coordinates x, a token holds a one-hot flag for the active layer, the number l of the loop
and whether it is `#`, a token put before the input (its id is |V|, the last of the new vocabulary):

    x'_i^{(l)} = (x_i^{(l)}, e_{r(l)}, l, 1[i=0]),    x'_0 = (0, 0, 0, 1) at all times.

- **Heads.** Queries and keys have three coordinates more. In the first, an active head scores `#` at -B and the others
  at 0: it ignores `#`. In the second and third, an idle head scores `#` at 0 and all others at -B twice: it attends to
  `#` alone, and fetches W_V 0 = 0. (Once is enough over the reals. In F_s a score of B_s less B_s is 0, which once more
  makes -B_s, whatever the score was.)
- **Feed-forwards.** A hidden unit gets its bias from its layer's flag and -B' from another's: unchanged if active, and
  else 0. `#` has no flags, so nothing moves it.
- **The schedule.** A unit for each layer adds the layer's output bias. What loop l adds to flags and counter is a
  function of l on 0…L-1, written by up to L units relu(l-i+1) with its second differences as their weights.
- **Output.** `#` gets the logit -B''.

In F_s, with B = B' = B'' = B_s, every number that the looped layer computes for x is the original's, for every
transformer and every input; over the reals softmax leaves `#` a little, and the bounds have to be large enough.

>>> from loopt.theory.examples import random_transformer
>>> small = random_transformer(order=(0, 1, 0, 0, 2), seed=0)
>>> inputs = torch.tensor([[0, 3, 1, 2], [2, 2, 4, 0]])
>>> looped = simulate(small, Bounds.measured(small, inputs))
>>> str(small.plan), small.d, small.n_heads, small.d_ff
('5x1', 6, 2, 7)
>>> str(looped.plan), looped.d, looped.n_heads, looped.d_ff
('1x5', 11, 6, 29)
>>> bool(differences(small, looped, inputs).max() < 1e-12)
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from loopt.errors import InputError, require
from loopt.model import Layer
from loopt.plan import LoopPlan
from loopt.theory.formal import FormalLayer, FormalTransformer, Head, Space, zeros
from loopt.theory.precision import FixedPoint
from loopt.theory.proof import Size, Trace

TOLERANCE = 1e-9
"""The largest difference allowed between a probability and the original's."""

SOFTMAX_MARGIN = 40.0
"""A score this far below another gets e^-40 of its weight, about 4e-18, which float64 does not notice."""


@dataclass(frozen=True)
class Constants:
    """The signs of the switches."""

    hide: float = -1.0
    """The score of `#` in an active head, in units of B."""
    repel: float = -1.0
    """Half the score of the other tokens in an idle head, in units of B."""
    lift: float = 0.0
    """Half the score of `#` in an idle head, in units of B."""
    idle: float = -1.0
    """What another layer's flag adds to a hidden unit, in units of B'."""
    count: float = 1.0
    """What a loop adds to the counter."""
    never_say: float = -1.0
    """The logit of `#`, in units of B''."""


AS_PRINTED = Constants(hide=0.0, repel=0.0, lift=-1.0)
"""The proof's own attention switch, queries 1 - 1[r'=r(l)] and keys -B 1[i=0]. It hides `#` from idle heads, which
should attend to nothing else, and leaves it visible, at score 0, to active ones."""
LIFTED = Constants(repel=0.0, lift=1.0)
"""A switch that lifts `#` above the scores of idle heads. Right over the reals; in F_s exp(B_s) is B_s, as is the
exponential of many a score, and idle heads are not one-hot."""


@dataclass(frozen=True)
class Bounds:
    """The sizes of the switches. Larger ones cost no precision: they are multiplied by 0 or decide alone."""

    scores: float
    """B, above any attention score by a margin at which softmax ignores the lower one."""
    preactivations: float
    """B', no less than any preactivation of a hidden unit without its bias."""
    logits: float
    """B'', above any logit by the same margin."""

    @classmethod
    def largest(cls, s: int) -> Bounds:
        """Returns B_s for all three, which is enough in F_s."""
        B = FixedPoint(s).largest
        return cls(B, B, B)

    @classmethod
    @torch.no_grad()
    def measured(cls, formal: FormalTransformer, inputs: Tensor, factor: float = 2.0) -> Bounds:
        """Returns the largest values on ``inputs`` [B, T], times a safety ``factor`` for other inputs, plus the softmax
        margin for B and B''.

        Every layer is measured in every loop, since idle heads and hidden units see states made for other layers.
        """
        model = formal.model()
        score = preactivation = 0.0
        x = model.embed(inputs)  # [B, T, d]
        context = model.context(((inputs.shape[0], inputs.shape[1]),))
        for step in formal.plan.steps:
            for layer in formal.layers:
                for head in layer.heads:
                    scores = (x @ head.query.T) @ (x @ head.key.T).transpose(1, 2)  # [B, T, T]
                    score = max(score, scores.tril().abs().max().item())
            module = model.loop.layers[step.layer]
            assert isinstance(module, Layer)
            x = x + module.attention(x, context)
            preactivation = max(preactivation, *((x @ one.W1.T).max().item() for one in formal.layers))
            x = x + module.feed_forward(x)
        logit = model.readout(x).abs().max().item()
        return cls(
            scores=factor * score + SOFTMAX_MARGIN,
            preactivations=factor * preactivation,
            logits=factor * logit + SOFTMAX_MARGIN,
        )

    @classmethod
    def from_weights(cls, formal: FormalTransformer) -> Bounds:
        """Returns bounds for all inputs, from the norms of the weights. They grow exponentially with the depth, but
        float64 has room for that.

        An active head leaves `#` a share of e^-(B - largest score) at most, and an idle one leaves no more to the other
        tokens. B is so far above the scores that what these shares change of a logit, through all later layers, is
        below e^-40: a head multiplies a difference by |W_OᵀW_V|(1 + 4|W_QᵀW_K||x|²) at most, and a feed-forward by
        |W_2||W_1|.
        """
        size = _norm_of_rows(formal.tokens) + _norm_of_rows(formal.positions)  # bounds |x|
        score = preactivation = moved = log_growth = 0.0
        for step in formal.plan.steps:
            for layer in formal.layers:
                score = max([score, *(_norm(head.query.T @ head.key) * size**2 for head in layer.heads)])
                moved += sum(_norm(head.output.T @ head.value) for head in layer.heads) * size
            layer = formal.layers[step.layer]
            mixed = [
                _norm(head.output.T @ head.value) * (1 + 4 * _norm(head.query.T @ head.key) * size**2)
                for head in layer.heads
            ]
            log_growth += math.log1p(sum(mixed)) + math.log1p(_norm(layer.W2) * _norm(layer.W1))
            size += sum(_norm(head.output.T @ head.value) for head in layer.heads) * size
            for other in formal.layers:
                preactivation = max(preactivation, _norm_of_rows(other.W1) * size)
            hidden = _norm(layer.W1) * size + layer.b1.norm().item()
            size += _norm(layer.W2) * hidden + layer.b2.norm().item()
        logit = _norm_of_rows(formal.output) * size
        growth = log_growth + math.log1p(moved * _norm_of_rows(formal.output))
        return cls(score + SOFTMAX_MARGIN + growth, preactivation, logit + SOFTMAX_MARGIN)


def _norm(matrix: Tensor) -> float:
    return torch.linalg.matrix_norm(matrix, 2).item()


def _norm_of_rows(matrix: Tensor) -> float:
    return matrix.norm(dim=1).max().item()


def distinct_layers(formal: FormalTransformer) -> tuple[tuple[FormalLayer, ...], tuple[int, ...]]:
    """Returns the R layers that differ, and r(0) … r(L-1), the one that each step of the plan runs."""
    layers: list[FormalLayer] = []
    place = []  # of each of the plan's layers
    for layer in formal.layers:
        same = [r for r, known in enumerate(layers) if known.same_as(layer)]
        place.append(same[0] if same else len(layers))
        if not same:
            layers.append(layer)
    return tuple(layers), tuple(place[step.layer] for step in formal.plan.steps)


def simulate(formal: FormalTransformer, bounds: Bounds, constants: Constants | None = None) -> FormalTransformer:
    """Builds one layer that, looped L times on `#` and an input, answers as ``formal`` does on the input. `#` is the
    last token of its vocabulary."""
    c = constants or Constants()
    for field in fields(bounds):
        value = getattr(bounds, field.name)
        allowed = "a finite number, 0 or more; measure it on inputs"
        require(math.isfinite(value) and value >= 0, f"bounds.{field.name}", value, allowed, InputError)
    layers, order = distinct_layers(formal)
    L, R = len(order), len(layers)
    space = Space(x=formal.d, flags=R, loop=1, start=1)
    flags, loop, start = space.read("flags"), space.unit("loop"), space.unit("start")

    def widen(weight: Tensor) -> Tensor:  # [k, d] -> [k, d + R + 2]
        return weight @ space.read("x")

    def others(r: int) -> Tensor:
        """Returns the weights [d + R + 2] that read 1 where a layer other than r is active, and else 0."""
        return flags.sum(0) - flags[r]

    def switched(head: Head, r: int) -> Head:
        active, idle = flags[r], others(r)
        hide = c.hide * bounds.scores * start
        leave = bounds.scores * (c.repel * flags.sum(0) + c.lift * start)
        query = torch.cat([widen(head.query), torch.stack([active, idle, idle])])  # [d_qk + 3, d + R + 2]
        key = torch.cat([widen(head.key), torch.stack([hide, leave, leave])])
        return Head(query, key, widen(head.value), widen(head.output))

    # what loop l adds to flags and counter, for every token but `#`
    turns = flags[list(order)]  # [L, d + R + 2]: e_{r(l)}
    next_turns = torch.cat([turns[1:], turns[-1:]])
    bends = torch.cat([zeros(2, space.size), next_turns - turns + c.count * loop]).diff(n=2, dim=0)  # [L, d + R + 2]
    needed = bends.ne(0).any(dim=1)
    clocks = loop - torch.arange(-1, L - 1, dtype=torch.float64)[needed, None] * flags.sum(0)  # l - i + 1

    gated = [
        widen(layer.W1) + layer.b1[:, None] * flags[r] + c.idle * bounds.preactivations * others(r)
        for r, layer in enumerate(layers)
    ]
    biases = widen(torch.stack([layer.b2 for layer in layers]))  # [R, d + R + 2]
    writes = [*(space.read("x").T @ layer.W2 for layer in layers), biases.T, bends[needed].T]
    W1 = torch.cat([*gated, flags, clocks])
    one_layer = FormalLayer(
        heads=tuple(switched(head, r) for r, layer in enumerate(layers) for head in layer.heads),
        W1=W1,
        b1=zeros(len(W1)),
        W2=torch.cat(writes, dim=1),
        b2=zeros(space.size),
    )
    return FormalTransformer(
        plan=LoopPlan.parse(f"1x{L}"),
        tokens=torch.cat([widen(formal.tokens) + turns[0], start[None]]),
        positions=torch.cat([zeros(1, space.size), widen(formal.positions)]),
        layers=(one_layer,),
        output=torch.cat([widen(formal.output), c.never_say * bounds.logits * flags.sum(0, keepdim=True)]),
    )


def with_start(formal: FormalTransformer, inputs: Tensor) -> Tensor:
    """Returns inputs of ``formal`` as inputs of its simulation, with `#` first: [B, T] -> [B, 1 + T]."""
    return torch.cat([torch.full_like(inputs[:, :1], formal.tokens.shape[0]), inputs], dim=1)


@torch.no_grad()
def differences(formal: FormalTransformer, looped: FormalTransformer, inputs: Tensor) -> Tensor:
    """Returns the largest difference of a probability between the looped model and the original at every position, `#`
    included: [B, T]."""
    wanted = formal.model()(inputs).softmax(-1)  # [B, T, V]
    found = looped.model()(with_start(formal, inputs))[:, 1:].softmax(-1)  # [B, T, V + 1]
    wanted = torch.cat([wanted, torch.zeros_like(wanted[..., :1])], dim=-1)
    return (found - wanted).abs().amax(dim=-1).nan_to_num(math.inf)


def claimed_sizes(name: str, formal: FormalTransformer, looped: FormalTransformer) -> tuple[Size, ...]:
    """Returns the theorem's sizes for the simulation of ``formal`` by ``looped``."""
    layers, order = distinct_layers(formal)
    R, L = len(layers), len(order)
    units = looped.d_ff - sum(len(layer.b1) for layer in layers)
    switch = "queries and keys have three coordinates more, the switch; the proof has one more than it claims"
    return (
        Size(f"{name}: layers", 1, looped.plan.distinct_layers),
        Size(f"{name}: loops, L", L, looped.plan.depth),
        Size(f"{name}: embedding, d+R+2", formal.d + R + 2, looped.d),
        Size(f"{name}: heads, RH", R * formal.n_heads, looped.n_heads),
        Size(
            f"{name}: hidden units, R·d_ff+O(L)", R * formal.d_ff + R + L, looped.d_ff, f"O(L) is {units}, at most R+L"
        ),
        Size(f"{name}: attention width", formal.d_attn, looped.d_attn, switch if looped.d_attn > formal.d_attn else ""),
    )


@torch.no_grad()
def trace(formal: FormalTransformer, ids: Tensor) -> Trace:
    """Returns for every position of ``ids`` [T] after each loop which layer its flags make active next, and how far its
    x is from the original's after as many layers."""
    _, order = distinct_layers(formal)
    looped = simulate(formal, Bounds.measured(formal, ids[None]))
    original, model = formal.model(), looped.model()
    x, before = original.embed(ids[None]), model.embed(with_start(formal, ids[None]))
    states = [before, *model.walk(before)]
    rows = []
    for loop, state in enumerate(states):
        if loop:
            x = original.loop.layers[formal.plan.steps[loop - 1].layer](x, original.context(((1, len(ids)),)))
        flags = state[0, 1:, formal.d : -2]  # [T, R]
        off = (state[0, 1:, : formal.d] - x[0]).abs().amax(-1)  # [T]
        cells = [f"layer {turn}, off by {far:.0e}" for turn, far in zip(flags.argmax(-1), off, strict=True)]
        start = f"|x|={state[0, 0, : formal.d].norm():.0e}"
        ran = f"loop {loop}, layer {order[loop - 1]} ran" if loop else "before"
        rows.append((ran, (start, *cells)))
    return Trace("the layer that is active next", ("#", *(str(token) for token in ids.tolist())), tuple(rows))
