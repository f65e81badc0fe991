"""The proof of Theorem 5.2: a certificate for every input, and runs over the reals and in F_s.

``certify`` reads the looped layer block by block. It finds in it the weights of each original layer, unchanged, and
computes for every loop what the coordinates beside x make of them: the switches of heads and hidden units, the output
bias that is added, the next flags and counter. Nothing in it depends on an input.

>>> from loopt.theory.examples import random_transformer
>>> small = random_transformer(order=(0, 1, 0), seed=0)
>>> bounds = Bounds.from_weights(small)
>>> certify(small, simulate(small, bounds), bounds).wrong
0
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from loopt.errors import InputError, require
from loopt.tasks import Task
from loopt.tasks.after_start import AfterStart
from loopt.tasks.group import GroupComposition
from loopt.tasks.groups import group
from loopt.theory.controls import Control, Damage, change_heads, change_layer, scaled
from loopt.theory.examples import all_words, composition_by_prefixes, random_transformer, rounded
from loopt.theory.formal import FormalLayer, FormalTransformer, Head, zeros
from loopt.theory.group_composition import build_group_composition
from loopt.theory.precision import FixedPoint, Reals, attention_maps, forward, weight_outside
from loopt.theory.proof import AttentionMaps, Check, Proof, Size, Tally
from loopt.theory.simulation import (
    AS_PRINTED,
    LIFTED,
    SOFTMAX_MARGIN,
    TOLERANCE,
    Bounds,
    Constants,
    claimed_sizes,
    differences,
    distinct_layers,
    simulate,
    trace,
    with_start,
)
from loopt.theory.thresholds import bisect

BITS = 8
"""The s of F_s in which the random transformers are run."""


def certify(formal: FormalTransformer, looped: FormalTransformer, needed: Bounds, s: int | None = None) -> Tally:
    """Compares the looped layer with the original block by block, for every loop.

    Over the reals (``s`` is None) the switches have to reach ``needed``, bounds that hold for every input. In F_s they
    have to be B_s."""
    return _Certificate(formal, looped, needed, s).tally


class _Certificate:
    def __init__(self, formal: FormalTransformer, looped: FormalTransformer, needed: Bounds, s: int | None) -> None:
        self.tally = Tally()
        self.formal, self.needed, self.F = formal, needed, None if s is None else FixedPoint(s)
        self.layers, self.order = distinct_layers(formal)
        d, R, L = formal.d, len(self.layers), len(self.order)
        self.d, self.size = d, d + R + 2
        heads, units = sum(len(layer.heads) for layer in self.layers), sum(len(layer.b1) for layer in self.layers)
        self.tally.holds(f"{looped.plan.depth} loops, should be {L}", looped.plan.depth == L)
        fits = looped.d == self.size and len(looped.layers) == 1 and len(looped.layers[0].heads) == heads
        self.tally.holds(f"sizes: d={looped.d}", fits and len(looped.layers[0].b1) >= units)
        if s is not None:
            outside = weight_outside(looped, s)
            self.tally.holds(outside, not outside)
        if self.tally.wrong:
            return
        one = torch.eye(self.size, dtype=torch.float64)
        self.start = one[-1]  # what `#` holds
        turns = [*self.order, self.order[-1]]
        self.control = torch.stack([one[d + r] + loop * one[-2] for loop, r in enumerate(turns)])  # [L + 1, size]
        self.embeddings_and_output(looped)
        (layer,) = looped.layers
        index = 0
        for r, original in enumerate(self.layers):
            for head in original.heads:
                self.head(f"head {index}", r, head, layer.heads[index])
                index += 1
        self.feed_forward(layer)

    def same(self, what: str, found: Tensor, wanted: Tensor) -> None:
        self.tally.equal(what, found, wanted)

    def widened(self, weights: Tensor) -> Tensor:  # [k, d] -> [k, size]
        return torch.cat([weights, zeros(len(weights), self.size - self.d)], dim=1)

    def off(self, what: str, switch: Tensor, needed: float) -> None:
        """Counts whether each switch reaches -needed, or in F_s is -B_s."""
        self.tally.holds(what, switch <= -needed if self.F is None else switch == -self.F.largest)

    def embeddings_and_output(self, looped: FormalTransformer) -> None:
        formal = self.formal
        self.same("token embeddings", looped.tokens[:-1], self.widened(formal.tokens) + self.control[0])
        self.same("the embedding of #", looped.tokens[-1:], self.start[None])
        self.same("the position of #", looped.positions[:1], zeros(1, self.size))
        self.same("positions", looped.positions[1:], self.widened(formal.positions))
        self.same("output layer", looped.output[:-1], self.widened(formal.output))
        self.same("the output row of #", looped.output[-1:, : self.d], zeros(1, self.d))
        self.off("the logit of #", self.control[-1:] @ looped.output[-1], self.needed.logits)

    def head(self, name: str, r: int, original: Head, head: Head) -> None:
        width = len(original.query)
        for part, old, new in (("query", original.query, head.query), ("key", original.key, head.key)):
            self.same(f"{name}: {part}", new[:width], self.widened(old))
            self.same(f"{name}: switch of the {part}", new[width:, : self.d], zeros(len(new) - width, self.d))
        self.same(f"{name}: value", head.value, self.widened(original.value))
        self.same(f"{name}: output", head.output, self.widened(original.output))
        loops = self.control[:-1]
        queries, keys = loops @ head.query[width:].T, loops @ head.key[width:].T  # [L, switches]
        on_others, on_start = queries * keys, queries * (head.key[width:] @ self.start)
        active = torch.tensor([turn == r for turn in self.order])
        nothing = torch.zeros_like(on_others)
        self.same(f"{name}: what its turn adds to scores, by loop", on_others[active], nothing[active])
        self.same(f"{name}: idle, what the score of # gets, by loop", on_start[~active], nothing[~active])
        self.off(f"{name}: # is hidden in its turn, by loop", on_start[active].sum(-1), self.needed.scores)
        # In F_s the last two each have to be -B_s: then the score ends at -B_s, whatever it was.
        idle = on_others[~active]
        self.off(f"{name}: idle, all but # are hidden, by loop", idle[:, -2:].amax(-1), self.needed.scores)
        self.tally.holds(f"{name}: idle, by loop", (idle <= 0).all(-1))

    def feed_forward(self, layer: FormalLayer) -> None:
        self.same("b1", layer.b1, torch.zeros_like(layer.b1))
        self.same("b2", layer.b2, torch.zeros_like(layer.b2))
        self.same("what # adds to hidden units", layer.W1[:, -1], torch.zeros_like(layer.b1))
        R, start = len(self.layers), 0
        for r, original in enumerate(self.layers):
            units = slice(start, start := start + len(original.b1))
            W1, flags = layer.W1[units], layer.W1[units, self.d : self.d + R]
            self.same(f"layer {r}: W1", W1[:, : self.d], original.W1)
            self.same(f"layer {r}: what the counter adds", W1[:, -2], torch.zeros_like(original.b1))
            self.same(f"layer {r}: b1", flags[:, r], original.b1)
            others = torch.cat([flags[:, :r], flags[:, r + 1 :]], dim=1)
            self.off(f"layer {r}: its idle hidden units", others.flatten(), self.needed.preactivations)
            self.same(f"layer {r}: W2", layer.W2[:, units].T, self.widened(original.W2.T))
        self.schedule(layer.W1[start:], layer.W2[:, start:])

    def schedule(self, W1: Tensor, W2: Tensor) -> None:
        self.same("the schedule reads x", W1[:, : self.d], zeros(len(W1), self.d))
        loops, after = self.control[:-1], self.control[1:]
        arithmetic = self.F or Reals()
        hidden = arithmetic.matmul(loops, W1.T).relu()
        written = arithmetic.matmul(hidden, W2.T)
        biases = torch.stack([self.layers[r].b2 for r in self.order])
        self.same("output biases, by loop", written[:, : self.d], biases)
        # one unit alone adds the bias, so that in F_s nothing is rounded on the way
        self.same("units of the output bias, by loop", hidden @ W2[: self.d].abs().T, biases.abs())
        self.same("flags and counter, by loop", (loops + written)[:, self.d :], after[:, self.d :])


def _switch(factor: float) -> Damage:
    """Returns the damage that multiplies the last two switches of all keys."""

    def turn(head: Head) -> Head:
        return replace(head, key=scaled(head.key, factor, slice(-2, None)))

    return lambda formal: change_layer(formal, 0, lambda layer: change_heads(layer, turn))


def _without_last_unit(formal: FormalTransformer) -> FormalTransformer:
    return change_layer(formal, 0, lambda layer: replace(layer, W2=scaled(layer.W2, 0.0, slice(None), -1)))


BREAKS: dict[str, Damage] = {
    "switch": _switch(-1.0),
    "temperature": _switch(1e-3),
    "gate": lambda formal: change_layer(formal, 0, lambda layer: replace(layer, W1=layer.W1.clamp(min=-1.0))),
    "schedule": _without_last_unit,
    "logit": lambda formal: replace(formal, output=scaled(formal.output, 0.0, -1)),
}
"""What ``loopt prove simulation --break`` can damage."""


def smallest_bounds(formal: FormalTransformer, inputs: Tensor) -> Bounds:
    """Returns the smallest B, B' and B'', each with the others as measured, for which the looped model is within
    TOLERANCE on ``inputs``. ``prove`` reports them for a random transformer."""
    ample = Bounds.measured(formal, inputs)

    def smallest(field: str) -> float:
        def holds(value: float) -> bool:
            looped = simulate(formal, replace(ample, **{field: value}))
            return differences(formal, looped, inputs).max().item() <= TOLERANCE

        return bisect(holds, 0.0, getattr(ample, field), steps=12)

    return Bounds(smallest("scores"), smallest("preactivations"), smallest("logits"))


def examples(seed: int) -> dict[str, FormalTransformer]:
    """Returns a group composition in logarithmic depth and random transformers whose layers repeat in any order."""
    generator = torch.Generator().manual_seed(seed)
    nets = {"S3 n=16": composition_by_prefixes(group("S3"), 16)}
    for R, L in ((5, 24), (3, 12), (2, 8), (1, 4)):
        order = [*range(R), *torch.randint(R, (L - R,), generator=generator).tolist()]
        nets[f"R={R} L={L}"] = random_transformer(order, seed)
    return nets


def prove(
    seed: int = 0,
    inputs: int = 16,
    show: bool = False,
    control: Control | None = None,
    own: FormalTransformer | None = None,
    task: Task | None = None,
) -> Proof:
    """Certifies the simulations of random transformers and of a group composition in logarithmic depth, or of the
    user's ``own``, for every input, and runs them beside the originals; ``show`` traces one of them. ``task`` is what
    ``own`` was trained on, if it was: its simulation reads the same after `#`."""
    require(inputs >= 1, "inputs", inputs, "1 or more", InputError)
    change = control or Control()
    nets = examples(seed) if own is None else {"own": own}
    generator = torch.Generator().manual_seed(seed)
    sizes: list[Size] = []
    checks, models = [], {}
    for name, formal in nets.items():
        bounds = Bounds.from_weights(formal)
        looped = change(simulate(formal, bounds))
        certificate = certify(formal, looped, bounds)
        checks.append(
            certificate.check(f"{name}: weights and switches", "every input, over the reals", "blocks by loop")
        )
        ids = torch.randint(formal.tokens.shape[0], (inputs, formal.positions.shape[0]), generator=generator)
        checks.append(_run_over_the_reals(name, formal, looped, ids))
        checks.append(_certify_in_precision(name, formal, change))
        sizes += claimed_sizes(name, formal, looped)
        models[name.replace(" ", "-").replace("=", "")] = looped.model()
    if own is None:
        checks.append(_run_in_precision(seed, change))
    return Proof(
        title="Theorem 5.2: one looped layer simulates any transformer with few distinct layers",
        sizes=tuple(sizes),
        checks=tuple(checks),
        models=models,
        tasks=_tasks(own, task),
        notes=_notes(nets["R=3 L=12"], seed) if own is None else (),
        traces=(trace(random_transformer((0, 1, 2, 1, 1, 0), seed), torch.tensor([3, 1, 4, 1, 0])),) if show else (),
        maps=(_maps(seed),) if show else (),
    )


def _tasks(own: FormalTransformer | None, task: Task | None) -> dict[str, Task]:
    """Returns which models solve a task, after `#`; random transformers solve none."""
    if own is None:
        composition = GroupComposition(group="S3", n=16, supervision="every")
        return {"S3-n16": AfterStart(task=AfterStart(task=composition))}
    fits = task is not None and len(own.tokens) == task.vocab_size
    return {"own": AfterStart.of(task)} if task is not None and fits else {}


def _maps(seed: int) -> AttentionMaps:
    """Returns the maps of three layers with a head each, looped as one: idle heads look at # alone."""
    formal, ids = random_transformer((0, 1, 2, 1), seed, heads=1), torch.tensor([[3, 1, 4, 1, 0, 2]])
    looped = simulate(formal, Bounds.measured(formal, ids))
    order = distinct_layers(formal)[1]
    rows = tuple(
        (f"loop {loop + 1}", tuple((f"layer {r}{' at work' * (r == order[loop])}", one) for r, one in enumerate(heads)))
        for loop, heads in enumerate(attention_maps(looped, with_start(formal, ids)[0]))
    )
    return AttentionMaps("Three layers side by side", ("#", *map(str, ids[0].tolist())), rows)


def _run_over_the_reals(name: str, formal: FormalTransformer, looped: FormalTransformer, ids: Tensor) -> Check:
    tally = Tally()
    differ = differences(formal, looped, ids)  # [B, T]
    tally.holds(f"{name}: the distribution, positions in order", differ <= TOLERANCE)
    scope = f"{len(ids)} sampled inputs, float64"
    return tally.check(f"{name}: the distribution at every position", scope, "positions", differ.max().item())


def _certify_in_precision(name: str, formal: FormalTransformer, change: Control) -> Check:
    in_steps = rounded(formal, BITS)
    looped = change(simulate(in_steps, Bounds.largest(BITS)))
    certificate = certify(in_steps, looped, Bounds.largest(BITS), BITS)
    return certificate.check(f"{name}, rounded to F_{BITS}: weights and switches", "every input, F_s", "blocks by loop")


def _run_in_precision(seed: int, change: Control) -> Check:
    """Runs every word of four letters through a small transformer and its simulation in F_s."""
    tally = Tally()
    small = rounded(random_transformer((0, 1, 0, 2, 1), seed, d=4, d_ff=5, vocabulary=3, n_max=4), BITS)
    words = all_words(3, 4)
    tally.holds("positions in order", ~differ_in_precision(small, change(simulate(small, Bounds.largest(BITS))), words))
    return tally.check(f"R=3 L=5 in F_{BITS}: p_θ = p_θ', run", "every word of 4 letters of 3", "positions")


def differ_in_precision(formal: FormalTransformer, looped: FormalTransformer, words: Tensor, s: int = BITS) -> Tensor:
    """Tells at which positions of ``words`` [B, n] the two distributions, in plain F_s, are not the same: [B, n]."""
    if weight_outside(looped, s):
        return torch.ones_like(words, dtype=torch.bool)
    F = FixedPoint(s)
    wanted = F.softmax(forward(formal, words, s))  # [B, n, V]
    found = F.softmax(forward(looped, with_start(formal, words), s)[:, 1:])  # [B, n, V + 1]
    return (found[..., :-1] != wanted).any(-1) | (found[..., -1] != 0)


def _notes(one: FormalTransformer, seed: int) -> tuple[str, ...]:
    ids = torch.randint(one.tokens.shape[0], (4, one.positions.shape[0]), generator=torch.Generator().manual_seed(seed))
    largest, needed = Bounds.measured(one, ids, factor=1.0), smallest_bounds(one, ids)
    printed = differences(one, simulate(one, largest, AS_PRINTED), ids).max().item()
    small = rounded(one, BITS)

    def apart(switch: Constants) -> int:
        return int(differ_in_precision(small, simulate(small, Bounds.largest(BITS), switch), ids).sum())

    s3 = simulate(composition_by_prefixes(group("S3"), 16), Bounds(1, 1, 1)).config
    return (
        f"the attention switch as printed is the wrong way round: over the reals it is off by {printed:.2g}, and in "
        f"F_{BITS} {apart(AS_PRINTED)} of {ids.numel()} positions differ",
        f"a switch that lifts # to +B in idle heads is right over the reals alone: in F_{BITS}, {apart(LIFTED)} of "
        f"{ids.numel()} positions differ; with this one, {apart(Constants())}",
        "idle heads and hidden units see states made for other layers, so B and B' bound all layers in all loops",
        "the paper leaves out the output biases of the layers and the logit of #",
        f"smallest switches for R=3 L=12: B={needed.scores:.3g} where scores reach "
        f"{largest.scores - SOFTMAX_MARGIN:.3g}, B'={needed.preactivations:.3g} where preactivations reach "
        f"{largest.preactivations:.3g}, B''={needed.logits:.3g} where logits reach "
        f"{largest.logits - SOFTMAX_MARGIN:.3g}",
        f"S3 n=16 has {s3.parameters()} parameters this way and "
        f"{build_group_composition(group('S3'), 16).config.parameters()} by Theorem 5.1",
    )
