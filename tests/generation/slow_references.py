"""Decoding without a cache, written from the definitions: every token is computed from the whole text, again and again.

What each run of a layer sees is decided by an attention of their own, which is told the layer and the loop through the
walker's ``caches``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from loopt import LoopedTransformer, LoopPlan
from loopt.attention import Context, Heads, split_and_rotate
from loopt.generation.exits import ExitRule, Moment
from loopt.plan import Pass

Key = tuple[int, int]
Keys = Callable[[Key, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""(layer, loop), keys and values [T, H, E] -> keys, values [S, H, E] to look at, and which [T, S] may be seen."""


def walk(
    model: LoopedTransformer, x: Tensor, passes: Sequence[Pass], keys: Keys, positions: Tensor, entered: Tensor
) -> Tensor:
    """Runs passes on one text [1, T, D] with an attention that looks at what ``keys`` says."""

    def attend(qkv: Tensor, context: Context, heads: Heads) -> Tensor:
        q, k, v = (one[0] for one in split_and_rotate(qkv[None], heads, context.rope))  # [T, H or K, E]
        k, v = (one.repeat_interleave(heads.queries // heads.keys, dim=1) for one in (k, v))
        k, v, seen = keys(context.cache, k, v)
        scores = torch.einsum("the,she->hts", q, k) * heads.scale
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        return torch.einsum("hts,she->the", weights, v)

    names = {(layer, one.loop): (layer, one.loop) for one in passes for layer in one.layers}
    context = model.context(((1, x.shape[1]),), positions[None], attend)
    for state in model.loop.walk(x, passes, context, names, entered):
        x = state
    return x


def causal(tokens: int) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


class Exits:
    """Tokens that leave the loop of a plan early: from then on they keep their state, and each layer the keys and
    values of the loop they left after."""

    def __init__(self, model: LoopedTransformer, plan: LoopPlan, tokens: list[int], left_after: list[int]) -> None:
        self.model, self.left_after = model, left_after
        self.before, self.looped, self.after = plan.around_loop()
        self.positions = torch.arange(len(tokens))
        self.kept: dict[Key, tuple[Tensor, Tensor]] = {}
        x = model.embed(torch.tensor([tokens]))
        self.entered = self.state = self.walk(x, self.before, x)

    def walk(self, x: Tensor, passes: Sequence[Pass], entered: Tensor) -> Tensor:
        return walk(self.model, x, passes, self.keys, self.positions, entered)

    def keys(self, name: Key, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        layer, loop = name
        k, v = k.clone(), v.clone()
        for token, left_after in enumerate(self.left_after):
            if layer in self.looped[0].layers and left_after <= loop:
                k[token], v[token] = (one[token] for one in self.kept[layer, left_after - 1])
        self.kept[name] = k, v
        return k, v, causal(len(k))

    def run_loop(self, loop: int) -> None:
        stay = (torch.tensor(self.left_after) > loop)[:, None]
        self.state = torch.where(stay, self.walk(self.state, self.looped[loop : loop + 1], self.entered), self.state)

    def read_out(self, states: Tensor) -> Tensor:
        """The logits [V] after the last token, were all to leave in these states [1, T, D]."""
        return self.model.readout(self.walk(states, self.after, states))[0, -1]


@torch.no_grad()
def logits_with_exits(
    model: LoopedTransformer, tokens: list[int], exits: list[int], plan: LoopPlan, rule: ExitRule
) -> tuple[Tensor, int]:
    """Returns the logits [V] after the last token, and the loops that the rule let it take. Earlier tokens left the
    loop after ``exits`` loops each."""
    _, looped, _ = plan.around_loop()
    earlier = Exits(model, plan, tokens[:-1], exits)  # as the blocks behind the loop will find them
    for loop in range(len(looped)):
        earlier.run_loop(loop)

    all_of_them = Exits(model, plan, tokens, [*exits, len(looped)])
    said_before = None
    for loop in range(len(looped)):
        came = all_of_them.state
        all_of_them.run_loop(loop)
        if loop == len(looped) - 1 or all_of_them.left_after[-1] <= loop:
            continue
        now = all_of_them.state[:, -1:]
        logits = all_of_them.read_out(torch.cat([earlier.state, now], dim=1))
        said = logits.log_softmax(0)[None] if rule.reads_out else None
        if bool(rule.leaves(model, Moment(came[:, -1], said_before), Moment(now[:, 0], said))):
            all_of_them.left_after[-1] = loop + 1
        said_before = said
    return all_of_them.read_out(all_of_them.state), all_of_them.left_after[-1]


@torch.no_grad()
def logits_with_window(model: LoopedTransformer, tokens: list[int], plan: LoopPlan, window: int) -> Tensor:
    """Returns the logits [T, V] where every loop but the first sees the last ``window`` tokens only."""
    positions = torch.arange(len(tokens))
    ago = positions[:, None] - positions

    def keys(name: Key, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return k, v, (ago >= 0) & ((ago < window) | (name[1] == 0))

    x = model.embed(torch.tensor([tokens]))
    return model.readout(walk(model, x, plan.passes, keys, positions, x))[0]


@torch.no_grad()
def logits_with_last(model: LoopedTransformer, prompt: list[int], following: list[int], plan: LoopPlan) -> Tensor:
    """Returns the logits [1 + following, V] after the prompt and each token that follows, where of every earlier token
    only the keys and values of a layer's last loop are known."""
    known: dict[int, tuple[Tensor, Tensor]] = {}
    said: dict[int, tuple[Tensor, Tensor]] = {}

    def keys(name: Key, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        said[name[0]] = (k, v)
        if not known:
            return k, v, causal(len(k))
        k, v = (torch.cat([before, own]) for before, own in zip(known[name[0]], (k, v), strict=True))
        return k, v, torch.ones(1, len(k), dtype=torch.bool)

    found = []
    for start, tokens in [(0, prompt), *((len(prompt) + n, [token]) for n, token in enumerate(following))]:
        positions = torch.arange(start, start + len(tokens))
        x = model.embed(torch.tensor([tokens]), positions[None])
        found.append(model.readout(walk(model, x, plan.passes, keys, positions, x))[0, -1])
        for layer, own in said.items():
            before = known.get(layer, (own[0][:0], own[1][:0]))
            known[layer] = torch.cat([before[0], own[0]]), torch.cat([before[1], own[1]])
        said.clear()
    return torch.stack(found)
