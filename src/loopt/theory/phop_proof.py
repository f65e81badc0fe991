"""The proof of Corollary 5.3: certificates over the reals and in F_s for every sequence, and runs of looped models."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from loopt.errors import InputError, require
from loopt.limits import LARGEST, WORK_PER_SECOND, require_affordable
from loopt.tasks.after_start import AfterStart
from loopt.tasks.phop import LETTERS, PHop
from loopt.theory import simulation_proof
from loopt.theory.controls import Control, Damage, change_heads, change_layer, scaled
from loopt.theory.formal import FormalTransformer
from loopt.theory.phop import ALPHABET, Constants, answers, bounds_of_phop, build_phop, draw, trace
from loopt.theory.phop_certificate import certify, certify_counting
from loopt.theory.phop_counting import answers_in_precision, build_counting, levels_told_apart, precision_of
from loopt.theory.precision import attention_maps, weight_outside
from loopt.theory.proof import AttentionMaps, Check, Proof, Size, Tally
from loopt.theory.simulation import Bounds, claimed_sizes, simulate

IN_PRECISION = 2
"""How many of the sequences are run in F_s, which is slow."""


def _keys(index: int, factor: float) -> Damage:
    def damage(formal: FormalTransformer) -> FormalTransformer:
        cooler = lambda head: replace(head, key=factor * head.key)  # noqa: E731
        return change_layer(formal, index, lambda layer: change_heads(layer, cooler))

    return damage


def _follow_near(formal: FormalTransformer) -> FormalTransformer:
    """Takes away a unit of the last layer, by which a pointer is followed."""
    unit = int(formal.layers[-1].W2.shape[1]) - 5
    return change_layer(formal, -1, lambda layer: replace(layer, W2=scaled(layer.W2, 0.0, slice(None), unit)))


BREAKS: dict[str, Damage] = {
    "temperature": _keys(-1, 1 / 64),
    "letter": lambda formal: replace(formal, tokens=scaled(formal.tokens, -1.0, 1)),
    "match": _keys(1, 0.0),
    "pointer": _follow_near,
    "nowhere": lambda formal: replace(formal, output=scaled(formal.output, -1.0, -1)),
}
"""What ``loopt prove phop --break`` can damage."""


def check(p: int, n: int, inputs: int, alphabet: int = ALPHABET) -> None:
    """Raises an InputError where ``prove`` would take too long, too much memory or too many bits."""
    for name, value in (("p", p), ("n", n), ("inputs", inputs)):
        require(1 <= value <= LARGEST, name, value, f"1 to {LARGEST}", InputError)
    require(2 <= alphabet <= len(LETTERS), "alphabet", alphabet, f"2 to {len(LETTERS)}", InputError)
    what = f"{inputs:,} sequences of n={n:,} letters"
    scores, cases = 16 * n * n, 2 * n * n  # of two sequences in F_s; of the feed-forward that follows a pointer
    seconds = (inputs * n * n * 100 + cases * 1000 + (alphabet * n) ** 2 * 100) // WORK_PER_SECOND
    require_affordable(what, memory=8 * (scores + 4 * inputs * n), seconds=seconds)
    precision_of(p, n)


def prove(
    p: int = 16,
    n: int = 256,
    inputs: int = 40,
    seed: int = 0,
    show: bool = False,
    control: Control | None = None,
    alphabet: int = ALPHABET,
) -> Proof:
    """Certifies pointer doubling over the reals and p-hop by counting in F_s for every sequence of n letters, and runs
    the looped models on sampled ones; ``show`` traces one on a short sequence."""
    check(p, n, inputs, alphabet)
    change, s = control or Control(), precision_of(p, n)
    damage = replace(change, loops=0)
    built, counting = damage(build_phop(p, n, alphabet)), damage(build_counting(p, n, s, alphabet))
    bounds = bounds_of_phop(n, alphabet, Constants())
    looped = replace(change, damage=None)(simulate(built, bounds))
    looped_counting = replace(change, damage=None)(simulate(counting, Bounds.largest(s)))
    tokens, wanted = draw(p, n, alphabet, inputs, seed)
    task = PHop(p=(p,), n=n, alphabet=alphabet, sampler="uniform", supervision="every")
    start = alphabet + 1
    name = f"p{p}-n{n}" + (f"-alphabet{alphabet}" if alphabet != ALPHABET else "")
    every = f"every sequence of {n} letters of {alphabet}"
    whole = simulation_proof.certify
    checks = (
        certify(built, p, n, alphabet).check("heads and feed-forwards, over the reals", every, "cases"),
        whole(built, looped, bounds).check("looped, block by block, over the reals", every, "blocks by loop"),
        certify_counting(counting, p, n, s, alphabet).check(f"by counting, in F_{s}", every, "cases"),
        whole(counting, looped_counting, Bounds.largest(s), s).check(
            f"by counting, looped, block by block, in F_{s}", every, "blocks by loop"
        ),
        _run("looped, run in float64", answers(looped.model(), tokens, start), wanted),
        _run_in_precision(looped_counting, tokens[:IN_PRECISION], wanted[:IN_PRECISION], s, start),
    )
    return Proof(
        title=f"Corollary 5.3: {p}-hop over {n} letters by looping one layer {looped.plan.depth} times",
        sizes=(
            *_sizes(p, n, s, built, counting),
            *claimed_sizes("looped", built, looped),
            *_of_counting(looped_counting),
        ),
        checks=checks,
        models={
            name: built.model(),
            f"{name}-looped": looped.model(),
            f"{name}-F{s}-looped": looped_counting.model(),
        },
        tasks={name: task, f"{name}-looped": AfterStart(task=task)},
        notes=(
            f"{int((wanted == alphabet).sum())} of the {wanted.numel()} answers of the sampled sequences are ⊥",
            "the claimed ⌊log2 p⌋+2 layers are enough for powers of two; for other p this one takes ⌈log2 p⌉+2: "
            "layer 2 reaches one hop, and following a pointer at most doubles the reach",
            "the paper's F_s rounds exp and subtracts no maximum: scores by position can be one-hot over at most "
            f"{levels_told_apart(8, 'plain')} distances, whatever s; counts find the latest of {n}, with a layer more",
        ),
        traces=(trace(p, seed=seed),) if show else (),
        maps=(_maps(),) if show else (),
    )


def _maps() -> AttentionMaps:
    """Returns the maps of 4-hop by counting, in F_s, on a short sequence."""
    letters = "abbacdabca"
    s = precision_of(4, len(letters))
    ids = torch.tensor([LETTERS.index(letter) for letter in letters])
    names: list[tuple[str, ...]] = [("letter before",), ("count before", "count here"), ("latest match",)]
    names += [("follow",)] * 2
    maps = attention_maps(build_counting(4, len(letters), s), ids, s)
    rows = tuple(
        (f"layer {layer}", tuple(zip(heads, of_layer, strict=True)))
        for layer, (heads, of_layer) in enumerate(zip(names, maps, strict=True), start=1)
    )
    return AttentionMaps(f"4-hop by counting, all arithmetic rounded (s = {s} bits)", tuple(letters), rows)


def _run(what: str, found: Tensor, wanted: Tensor) -> Check:
    tally = Tally()
    tally.equal(f"{what}, by sequence", found, wanted)
    return tally.check(f"{what}: all {wanted.numel():,} positions", f"{len(wanted)} sampled sequences", "sequences")


def _run_in_precision(looped: FormalTransformer, tokens: Tensor, wanted: Tensor, s: int, start: int) -> Check:
    tally = Tally()
    outside = weight_outside(looped, s)
    if outside:
        tally.holds(outside, False)
    else:
        tally.equal("positions, by sequence", answers_in_precision(looped, tokens, s, start), wanted)
    what = f"by counting, looped, run in F_{s}: all {wanted.numel():,} positions"
    return tally.check(what, f"{len(wanted)} sampled sequences", "sequences")


def _sizes(p: int, n: int, s: int, built: FormalTransformer, counting: FormalTransformer) -> tuple[Size, ...]:
    power_of_two = p & (p - 1) == 0
    constant = "O(1): the same for all n and p"
    layers = p.bit_length() + 1
    return (
        Size(
            "layers, ⌊log2 p⌋+2",
            layers,
            built.plan.depth,
            "" if power_of_two else "⌈log2 p⌉+2: p is not a power of two",
        ),
        Size("distinct layers", 3, built.plan.distinct_layers),
        Size("heads", 1, built.n_heads),
        Size("embedding", None, built.d, constant),
        Size("attention width", None, built.d_attn, constant),
        Size("hidden units", None, built.d_ff, constant),
        Size("in F_s: precision s", None, s, f"O(log n): about 2·log2 n + log2 log n + 2, n = {n}"),
        Size("in F_s: layers", layers, counting.plan.depth, "⌈log2 p⌉+3: one layer more, which counts"),
        Size("in F_s: heads", 1, counting.n_heads, "two heads count"),
        Size("in F_s: embedding", None, counting.d, constant),
        Size("in F_s: attention width", None, counting.d_attn, constant),
        Size("in F_s: hidden units", None, counting.d_ff, constant),
    )


def _of_counting(looped: FormalTransformer) -> tuple[Size, ...]:
    return (
        Size("looped in F_s: heads", 3, looped.n_heads, "the layer that counts has two, and is one more"),
        Size("looped in F_s: embedding", None, looped.d, "O(1)"),
        Size("looped in F_s: hidden units", None, looped.d_ff, "O(1) is claimed; R·d_ff + O(log p)"),
    )
