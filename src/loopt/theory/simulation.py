"""Theorem 5.2: one layer, looped L times, computes what any L-layer transformer with R distinct layers computes.

The one layer has the heads and hidden units of all R layers side by side; in loop l those of layer r(l) are active and
the others idle. Beside its d coordinates x, a token holds a one-hot flag for the active layer, the number l of the loop
and whether it is `#`, a token put before the input (its id is |V|, the last of the new vocabulary):

    x'_i^{(l)} = (x_i^{(l)}, e_{r(l)}, l, 1[i=0]),    x'_0 = (0, 0, 0, 1) at all times.

- **Heads.** Every query has one more coordinate, -B where the flag is its layer's and +B where it is another's; every
  key has 1[i=0] there. An active head scores `#` at -B and ignores it; an idle head scores `#` at +B, attends to it
  alone, and fetches W_V 0 = 0.
- **Feed-forwards.** A hidden unit gets -B' from another layer's flag and from `#`: unchanged if active, and else
  below 0.
- **The schedule.** What loop l adds to every token alike (the change of flags, 1 to the counter, the output bias of
  layer r(l)) is a function of l on 0…L-1. L hidden units relu(l-i+1) write it, with its second differences as their
  weights; a unit whose weights are 0 is left out.
- **Output.** `#` gets the logit -B''.

>>> small = random_transformer(order=(0, 1, 0, 0, 2), seed=0)
>>> inputs = torch.tensor([[0, 3, 1, 2], [2, 2, 4, 0]])
>>> looped = simulate(small, Bounds.measured(small, inputs))
>>> str(small.plan), small.d, small.n_heads, small.d_ff
('5x1', 6, 2, 7)
>>> str(looped.plan), looped.d, looped.n_heads, looped.d_ff
('1x5', 11, 6, 26)
>>> bool(differences(small, looped, inputs).max() < 1e-12)
True
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from loopt.errors import InputError, require
from loopt.model import Layer
from loopt.plan import LoopPlan
from loopt.tasks.groups import group
from loopt.theory.examples import composition_by_prefixes, random_transformer
from loopt.theory.formal import FormalLayer, FormalTransformer, Head, Space, zeros
from loopt.theory.group_composition import build_group_composition
from loopt.theory.proof import Check, Proof, Size, Trace
from loopt.theory.thresholds import bisect

TOLERANCE = 1e-9
"""The largest difference allowed between a probability and the original's."""

SOFTMAX_MARGIN = 40.0
"""A score this far below another gets e^-40 of its weight, about 4e-18, which float64 does not notice."""


@dataclass(frozen=True)
class Constants:
    """The signs of the switches."""

    hide: float = -1.0
    """The score of `#` in an active head, in units of B."""
    attract: float = 1.0
    """The score of `#` in an idle head, in units of B."""
    idle: float = -1.0
    """What another layer's flag adds to a hidden unit, in units of B'."""
    silence: float = -1.0
    """What being `#` adds to a hidden unit, in units of B'."""
    stand_still: float = -1.0
    """What being `#` adds to the units of the schedule, which start at relu(0+1) = 1."""
    count: float = 1.0
    """What a loop adds to the counter."""
    never_say: float = -1.0
    """The logit of `#`, in units of B''."""


AS_PRINTED = Constants(hide=0.0, attract=-1.0)
"""The proof's own attention switch, queries 1 - 1[r'=r(l)] and keys -B 1[i=0]. It hides `#` from idle heads, which
should attend to nothing else, and leaves it visible, at score 0, to active ones."""


@dataclass(frozen=True)
class Bounds:
    """The sizes of the switches. Larger ones cost no precision: they are multiplied by 0 or decide alone."""

    scores: float
    """B, above any attention score by a margin at which softmax ignores the lower one."""
    preactivations: float
    """B', no less than any preactivation of a hidden unit."""
    logits: float
    """B'', above any logit by the same margin."""

    @classmethod
    @torch.no_grad()
    def measured(cls, formal: FormalTransformer, inputs: Tensor, factor: float = 2.0) -> Bounds:
        """Returns the largest values on ``inputs`` [B, T], times a safety ``factor`` for other inputs, plus the softmax
        margin for B and B''.

        Every layer is measured in every loop, since idle heads and hidden units see states made for other layers.
        """
        model = formal.model()
        score, preactivation = 0.0, max(layer.b1.max().item() for layer in formal.layers)  # b1: what `#` has
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
            preactivation = max(preactivation, *((x @ one.W1.T + one.b1).max().item() for one in formal.layers))
            x = x + module.feed_forward(x)
        logit = model.readout(x).abs().max().item()
        return cls(
            scores=factor * score + SOFTMAX_MARGIN,
            preactivations=factor * max(preactivation, 0.0),
            logits=factor * logit + SOFTMAX_MARGIN,
        )

    @classmethod
    def from_weights(cls, formal: FormalTransformer) -> Bounds:
        """Returns bounds for all inputs, from the norms of the weights. They grow exponentially with the depth, but
        float64 has room for that."""
        size = _norm_of_rows(formal.tokens) + _norm_of_rows(formal.positions)  # bounds |x|
        score = preactivation = 0.0
        for step in formal.plan.steps:
            for layer in formal.layers:
                score = max([score, *(_norm(head.query.T @ head.key) * size**2 for head in layer.heads)])
            layer = formal.layers[step.layer]
            size += sum(_norm(head.output.T @ head.value) for head in layer.heads) * size
            for other in formal.layers:
                preactivation = max(preactivation, _norm_of_rows(other.W1) * size + other.b1.abs().max().item())
            hidden = _norm(layer.W1) * size + layer.b1.norm().item()
            size += _norm(layer.W2) * hidden + layer.b2.norm().item()
        logit = _norm_of_rows(formal.output) * size
        return cls(score + SOFTMAX_MARGIN, preactivation, logit + SOFTMAX_MARGIN)


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
        switch = bounds.scores * (c.attract * others(r) + c.hide * flags[r])
        query = torch.cat([widen(head.query), switch[None]])  # [d_qk + 1, d + R + 2]
        key = torch.cat([widen(head.key), start[None]])
        return Head(query, key, widen(head.value), widen(head.output))

    # what loop l adds to every token but `#`
    turns = flags[list(order)]  # [L, d + R + 2]: e_{r(l)}
    next_turns = torch.cat([turns[1:], turns[-1:]])
    biases = widen(torch.stack([layers[r].b2 for r in order]))
    schedule = biases + next_turns - turns + c.count * loop
    bends = torch.cat([zeros(2, space.size), schedule]).diff(n=2, dim=0)  # [L, d + R + 2]
    needed = bends.ne(0).any(dim=1)
    first_loops = torch.arange(L, dtype=torch.float64)[needed]  # i of relu(l - i + 1)

    silence = c.silence * start
    gated = [widen(layer.W1) + bounds.preactivations * (c.idle * others(r) + silence) for r, layer in enumerate(layers)]
    one_layer = FormalLayer(
        heads=tuple(switched(head, r) for r, layer in enumerate(layers) for head in layer.heads),
        W1=torch.cat([*gated, (loop + c.stand_still * start).expand(len(first_loops), -1)]),
        b1=torch.cat([*(layer.b1 for layer in layers), 1 - first_loops]),
        W2=torch.cat([*(space.read("x").T @ layer.W2 for layer in layers), bends[needed].T], dim=1),
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


def smallest_bounds(formal: FormalTransformer, inputs: Tensor) -> Bounds:
    """Returns the smallest B, B' and B'', each with the others as measured, for which the looped model is within
    TOLERANCE on ``inputs``. ``prove`` reports them for a random transformer."""
    ample = Bounds.measured(formal, inputs)

    def smallest(field: str) -> float:
        def holds(value: float) -> bool:
            looped = simulate(formal, replace(ample, **{field: value}))
            return differences(formal, looped, inputs).max().item() <= TOLERANCE

        return bisect(holds, 0.0, getattr(ample, field))

    return Bounds(smallest("scores"), smallest("preactivations"), smallest("logits"))


def claimed_sizes(name: str, formal: FormalTransformer, looped: FormalTransformer) -> tuple[Size, ...]:
    """Returns the theorem's sizes for the simulation of ``formal`` by ``looped``."""
    layers, order = distinct_layers(formal)
    R, L = len(layers), len(order)
    units = looped.d_ff - sum(len(layer.b1) for layer in layers)
    switch = "queries and keys have one coordinate more, the switch, as they have in the proof"
    return (
        Size(f"{name}: layers", 1, looped.plan.distinct_layers),
        Size(f"{name}: loops, L", L, looped.plan.depth),
        Size(f"{name}: embedding, d+R+2", formal.d + R + 2, looped.d),
        Size(f"{name}: heads, RH", R * formal.n_heads, looped.n_heads),
        Size(f"{name}: hidden units, R·d_ff+O(L)", R * formal.d_ff + L, looped.d_ff, f"O(L) is {units}, at most L"),
        Size(f"{name}: attention width", formal.d_attn, looped.d_attn, switch if looped.d_attn > formal.d_attn else ""),
    )


def prove(seed: int = 0, inputs: int = 16, show: bool = False) -> Proof:
    """Checks random transformers whose layers repeat in any order, and a log-depth group composition, against their
    looped simulations at every position of ``inputs`` sequences; ``show`` traces one of them."""
    require(inputs >= 1, "inputs", inputs, "1 or more", InputError)
    generator = torch.Generator().manual_seed(seed)
    nets = {"S3 n=16": composition_by_prefixes(group("S3"), 16)}
    for R, L in ((5, 24), (3, 12), (2, 8), (1, 4)):
        order = [*range(R), *torch.randint(R, (L - R,), generator=generator).tolist()]
        nets[f"R={R} L={L}"] = random_transformer(order, seed)

    sizes: list[Size] = []
    checks, models, examples = [], {}, {}
    for name, formal in nets.items():
        words, n = formal.tokens.shape[0], formal.positions.shape[0]
        ids = examples[name] = torch.randint(words, (inputs, n), generator=generator)
        for how, bounds in (("for any input", Bounds.from_weights(formal)), ("measured", Bounds.measured(formal, ids))):
            began = time.perf_counter()
            looped = simulate(formal, bounds)
            differ = differences(formal, looped, ids)  # [B, T]
            wrong, worst = int((differ > TOLERANCE).sum()), differ.max().item()
            what = f"{name}, B={bounds.scores:.3g} {how}: the distribution at every position"
            checks.append(Check(what, differ.numel(), wrong, time.perf_counter() - began, worst))
        sizes += claimed_sizes(name, formal, looped)
        models[name.replace(" ", "-").replace("=", "")] = looped.model()

    one, ids = nets["R=3 L=12"], examples["R=3 L=12"]
    largest, needed = Bounds.measured(one, ids, factor=1.0), smallest_bounds(one, ids)
    printed = differences(one, simulate(one, largest, AS_PRINTED), ids).max().item()
    s3, s3_by_theorem_1 = models["S3-n16"].config, build_group_composition(group("S3"), 16).config
    return Proof(
        title="Theorem 5.2: one looped layer simulates any transformer with few distinct layers",
        sizes=tuple(sizes),
        checks=tuple(checks),
        models=models,
        notes=(
            f"the attention switch as printed is the wrong way round: it is off by {printed:.2g}",
            "idle heads and hidden units see states made for other layers, so B and B' bound all layers in all loops",
            "the paper leaves out the output biases of the layers, which the schedule adds, and the logit of #",
            f"smallest switches for R=3 L=12: B={needed.scores:.4g} where scores reach "
            f"{largest.scores - SOFTMAX_MARGIN:.4g}, B'={needed.preactivations:.4g} where preactivations reach "
            f"{largest.preactivations:.4g}, B''={needed.logits:.4g} where logits reach "
            f"{largest.logits - SOFTMAX_MARGIN:.4g}",
            f"S3 n=16 has {s3.parameters()} parameters this way and {s3_by_theorem_1.parameters()} by Theorem 5.1",
        ),
        traces=(trace(random_transformer((0, 1, 2, 1, 1, 0), seed), torch.tensor([3, 1, 4, 1, 0])),) if show else (),
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
