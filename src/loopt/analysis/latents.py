"""What goes on inside a model, loop by loop: its answers, its attention, and how its states move."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from loopt.analysis.thoughts import LoopAnswer
from loopt.attention import Attend, Context, Heads, split_and_rotate
from loopt.model import LoopedTransformer
from loopt.plan import Pass
from loopt.scoring import read_out

SETTLED = 0.05
"""A state has settled when a loop moves it by less than this share of how far its path goes from the path's middle: of
a state's own size most may be the same all along, as in a built model."""
NOISE = 1e-5
"""A path that goes no further than this share of a state's size goes nowhere."""
LONGEST_CYCLE = 4


@dataclass(frozen=True)
class Latents:
    """One example as a model sees it. A step is a loop of its loopable block; where no block loops, a layer."""

    by: Literal["loop", "layer"]
    trained: int
    """How many steps the model was trained with."""
    answers: list[LoopAnswer]
    """What it would answer if it stopped after each step."""
    states: Tensor
    """[steps + 1, T, D] float64: the state before the first step and after each."""
    looked_at: Tensor
    """[steps, layers, H, T, k] int64: the positions that each position looks at most, strongest first."""
    look_weights: Tensor
    """The same shape, float32: how much of its attention each of them gets."""

    def change(self) -> Tensor:
        """Returns the size of each step's change, as a share of the state before it: [steps, T]."""
        sizes = self.states[:-1].norm(dim=-1).clamp_min(1e-12)
        return (self.states[1:] - self.states[:-1]).norm(dim=-1) / sizes

    def cosine(self) -> Tensor:
        """Returns the cosine between the states before and after each step: [steps, T]."""
        return torch.nn.functional.cosine_similarity(self.states[1:], self.states[:-1], dim=-1)

    def orbit(self) -> tuple[Tensor, list[float]]:
        """Returns the states in the plane of their two principal components, [steps + 1, T, 2], and which share of the
        variance each component has."""
        flat = self.states.flatten(0, 1)
        centered = flat - flat.mean(0)
        variances, directions = torch.linalg.eigh(centered.T @ centered)  # ascending; far smaller than the SVD of all
        plane = directions[:, -2:].flip(1)
        # a direction may point either way: the largest coordinate is positive, so that a page is the same each time
        plane = plane * plane.gather(0, plane.abs().argmax(0)[None]).sign()
        shares = (variances[-2:].flip(0) / variances.sum().clamp_min(1e-12)).tolist()
        return (centered @ plane).unflatten(0, self.states.shape[:2]), shares

    def movement(self, position: int) -> str:
        """Returns in words where the state at a position goes: it settles, it cycles, or it keeps moving."""
        path = self.states[:, position]
        extent = float((path - path.mean(0)).norm(dim=-1).max())
        if extent <= NOISE * float(path.norm(dim=-1).max()):
            return "never moves"
        moving = (path[1:] - path[:-1]).norm(dim=-1) >= SETTLED * extent
        if moving.any() and not moving[-1]:
            return f"settled after {self.by} {int(moving.nonzero()[-1]) + 1}"
        for period in range(2, min(LONGEST_CYCLE, len(moving) // 2) + 1):
            if float((path[-1] - path[-1 - period]).norm()) < SETTLED * extent:
                return f"cycles with period {period}"
        return f"still moving after {self.by} {len(moving)}"


@torch.no_grad()
def look_inside(
    model: LoopedTransformer,
    tokens: Sequence[int],
    loops: int | None = None,
    top: int = 3,
    start: int | None = None,
    looks: int = 16,
    deadline: float | None = None,
) -> Latents:
    """Runs a model on one example and keeps what happens; of the attention of each position, the ``looks`` positions
    that get most. ``loops`` may be more than it was trained with. ``start`` is a token that the model reads first and
    that is no part of the example: a built model's #. Past a ``deadline`` of time.monotonic() it raises a
    TimeoutError."""
    hidden = 0 if start is None else 1
    ids = torch.tensor([[*([] if start is None else [start]), *tokens]], device=model.token_embedding.weight.device)
    seen: list[tuple[Tensor, Tensor]] = []
    x = model.embed(ids)
    context = model.context(((1, ids.shape[1]),), attend=_recorder(seen, hidden, looks))
    by, before, stepped, after = _steps(model, loops)
    x = model.loop(x, before, context)
    states, answers, looked = [x], [], []
    seen.clear()
    for count, state in enumerate(model.loop.walk(x, stepped, context), start=1):
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError
        states.append(state)
        looked.append([torch.stack(of_layers).cpu() for of_layers in zip(*seen, strict=True)])  # [layers, H, T, k] each
        said = read_out(model, model.loop(state, after, context), top)
        columns = (said.tokens, said.probabilities, said.entropy)
        answers.append(LoopAnswer(count, *(column[0, hidden:].tolist() for column in columns)))
        seen.clear()
    kept = torch.cat(states)[:, hidden:].double().cpu()  # [steps + 1, T, D]
    weights, looked_at = (torch.stack(of_steps) for of_steps in zip(*looked, strict=True))
    return Latents(by, steps_trained(model), answers, kept, looked_at, weights)


@torch.no_grad()
def states_by_step(model: LoopedTransformer, ids: Tensor, loops: int | None = None) -> list[Tensor]:
    """Returns the states [B, T, D] before the first step and after each, as the readout's norm sees them."""
    _, before, stepped, _ = _steps(model, loops)
    context = model.context(((ids.shape[0], ids.shape[1]),))
    x = model.loop(model.embed(ids), before, context)
    return [model.final_norm(state) for state in (x, *model.loop.walk(x, stepped, context))]


def steps_trained(model: LoopedTransformer) -> int:
    """Returns how many steps a model takes as it was trained: loops, or layers where no block loops."""
    return len(_steps(model, None)[2])


Passes = tuple[Pass, ...]


def _steps(model: LoopedTransformer, loops: int | None) -> tuple[Literal["loop", "layer"], Passes, Passes, Passes]:
    """Returns what a step is, and the passes before the steps, the steps, and those behind them."""
    plan = model.config.plan
    if all(block.loops == 1 for block in plan.blocks):
        return "layer", (), tuple(Pass(s.block, s.loop, range(s.layer, s.layer + 1)) for s in plan.steps), ()
    return "loop", *model.plan_with(loops).around_loop()


def _recorder(seen: list[tuple[Tensor, Tensor]], hidden: int, looks: int) -> Attend:
    """Returns an attention, for one sequence, that keeps its largest weights and their positions, [H, T, k] each for
    each layer. Of these, the first ``hidden`` positions are left out."""

    def attend(qkv: Tensor, context: Context, heads: Heads) -> Tensor:
        q, k, v = split_and_rotate(qkv[None], heads, context.rope)  # [1, T, H, E] …
        q, k, v = (t[0].transpose(0, 1) for t in (q, k, v))  # [H, T, E]
        shared = heads.queries // heads.keys
        k, v = (t.repeat_interleave(shared, dim=0) for t in (k, v))
        later = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).triu(1)
        scores = (heads.scale * q @ k.transpose(1, 2)).masked_fill(later, -torch.inf)
        weights = scores.softmax(-1)  # [H, T, T]
        shown = weights[:, hidden:, hidden:].float()
        most = shown.topk(min(looks, shown.shape[-1]))
        seen.append((most.values, most.indices))
        return (weights @ v).transpose(0, 1)  # [T, H, E]

    return attend
