"""Linear probes: which true intermediate values of a task can be read out of a model's states, loop by loop.

A probe is a ridge regression from the state at a position to one-hot labels; its reading is the largest output. It is
fitted on some examples and measured on others. The control task (Hewitt and Liang, 2019, arXiv 1909.03368) gives every
run of three tokens a label of its own at random, the same in both sets: what a probe scores there it owes to its own
capacity, not to what the model computes. The baseline is the most frequent label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopt.analysis.latents import states_by_step
from loopt.model import LoopedTransformer
from loopt.tasks import IGNORE, Task
from loopt.tasks.inside import quantities

RIDGE = 1e-4
"""Weight of the penalty, in units of the number of rows."""
CONTROL_WINDOW = 3


@dataclass(frozen=True)
class Score:
    """How well one quantity can be read after one step."""

    quantity: str
    step: int
    """0 is before the first loop."""
    accuracy: float
    control: float
    """What a probe of the same kind scores on the control task."""
    baseline: float
    """What the most frequent label of the fitted examples scores."""
    rows: int
    """How many positions it was measured on."""


@dataclass(frozen=True)
class Probes:
    """The fitted probes of a model, by quantity and step, and how well each reads."""

    weights: dict[tuple[str, int], Tensor]
    """[D + 1, classes] each; the last row is the constant."""
    scores: list[Score]

    def read(self, states: Sequence[Tensor]) -> dict[str, list[list[int]]]:
        """Returns by quantity what its probes read from the states [T, D] of each step: labels by step and position."""
        names = dict.fromkeys(quantity for quantity, _ in self.weights)
        return {
            name: [(_with_one(x) @ self.weights[name, step]).argmax(1).tolist() for step, x in enumerate(states)]
            for name in names
        }


def fit_probes(
    model: LoopedTransformer,
    task: Task,
    loops: int | None = None,
    examples: int = 256,
    start: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Probes:
    """Fits a probe for each quantity of the task after each step, on validation examples, and measures it on as many
    test examples. ``start`` is a token that a built model reads first."""
    fitted, measured = (_gather(model, task, split, loops, examples, start) for split in ("validation", "test"))
    weights: dict[tuple[str, int], Tensor] = {}
    scores = []
    for step, (x, x_test) in enumerate(zip(fitted.states, measured.states, strict=True)):
        say(f"reading {'the input' if step == 0 else f'step {step}'}")
        regressions: dict[bytes, _Regression] = {}  # most quantities have labels at the same positions
        for name, y in fitted.labels.items():
            y_test = measured.labels[name]
            classes = int(torch.cat([y, y_test]).max()) + 1
            rows, rows_test = y != IGNORE, y_test != IGNORE
            if not (rows.any() and rows_test.any()):
                continue
            which = rows.numpy().tobytes()
            if which not in regressions:
                regressions[which] = _Regression(x[rows])
            control, control_test = (_control(part.windows, classes) for part in (fitted, measured))
            probe, of_control = (regressions[which].fit(labels[rows], classes) for labels in (y, control))
            weights[name, step] = probe
            common = y[rows].bincount(minlength=classes).argmax()
            scores.append(
                Score(
                    name,
                    step,
                    accuracy=_accuracy(probe, x_test[rows_test], y_test[rows_test]),
                    control=_accuracy(of_control, x_test[rows_test], control_test[rows_test]),
                    baseline=float((y_test[rows_test] == common).double().mean()),
                    rows=int(rows_test.sum()),
                )
            )
    return Probes(weights, scores)


@dataclass(frozen=True)
class _Rows:
    states: list[Tensor]
    """For each step [N, D], the positions of all examples one after the other."""
    labels: dict[str, Tensor]
    """[N] each."""
    windows: Tensor
    """[N]: a number for the last tokens up to each position."""


def _gather(
    model: LoopedTransformer, task: Task, split: str, loops: int | None, examples: int, start: int | None
) -> _Rows:
    tokens = task.sample(range(examples), 0, split).tokens  # type: ignore[arg-type]
    device = model.token_embedding.weight.device
    hidden = 0 if start is None else 1
    by_step: list[list[Tensor]] = []
    for few in tokens.split(32):
        ids = few if start is None else torch.cat([torch.full_like(few[:, :1], start), few], dim=1)
        states = states_by_step(model, ids.to(device), loops)
        by_step.append([state[:, hidden:].flatten(0, 1).double().cpu() for state in states])
    found = [quantities(task, row) for row in tokens.tolist()]
    names = dict.fromkeys(name for one in found for name in one)
    nothing = [IGNORE] * tokens.shape[1]
    labels = {name: torch.tensor([one.get(name, nothing) for one in found]).flatten() for name in names}
    windows = torch.zeros_like(tokens)
    for back in range(CONTROL_WINDOW):
        windows = windows * (task.vocab_size + 1) + (tokens.roll(back, 1) + 1) * (torch.arange(tokens.shape[1]) >= back)
    return _Rows([torch.cat(parts) for parts in zip(*by_step, strict=True)], labels, windows.flatten())


def _control(windows: Tensor, classes: int) -> Tensor:
    """Returns a random label for each number [N], always the same one for the same number."""
    mixed = windows * 6364136223846793005 + 1442695040888963407
    mixed = (mixed ^ (mixed >> 29)) * -4658895280553007687
    return (mixed >> 33).remainder(classes)


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)


class _Regression:
    """The ridge regression from rows [N, D] to one-hot labels, factorized once for all labels."""

    def __init__(self, x: Tensor) -> None:
        x = _with_one(x)
        self.scale = x.pow(2).mean(0).sqrt().clamp_min(1e-12)  # so that the penalty weighs all coordinates alike
        self.x = x / self.scale
        gram = self.x.T @ self.x + RIDGE * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
        self.factor = torch.linalg.cholesky(gram)

    def fit(self, labels: Tensor, classes: int) -> Tensor:
        """Returns the weights for labels [N]: [D + 1, classes]."""
        targets = torch.nn.functional.one_hot(labels, classes).to(self.x.dtype)
        return torch.cholesky_solve(self.x.T @ targets, self.factor) / self.scale[:, None]


def _accuracy(probe: Tensor, x: Tensor, labels: Tensor) -> float:
    return float(((_with_one(x) @ probe).argmax(1) == labels).double().mean())
