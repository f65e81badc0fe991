"""What a training step costs on a CUDA device, at the paper's shapes.

    python benchmarks/step_gpu.py                 all sections, about four minutes on an H200
    python benchmarks/step_gpu.py steps phop      one section, of one task
    python benchmarks/step_gpu.py --help          what can be changed

steps     A step of the trainer (examples made on the device, layers compiled, everything captured in one CUDA graph)
          beside a plain loop around the same model: torch.compile of the whole model, autocast, AdamW with fused=True,
          a LambdaLR schedule, nothing captured, and of a mixture the shorter examples padded. Both see the same
          examples. Then the share of the generator: the same sampler, compiled and captured alone.
together  Three seeds of one row in one process, each on its own stream, beside one after the other.
profile   Kernels of one step by the time they take.

Nothing is asserted about time: machines differ, and other programs run on them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from generators import captured, compiled_draw, maker
from loopt.plan import LoopPlan
from loopt.reproduce.catalogue import EXPERIMENTS
from loopt.runs import TrainConfig
from loopt.runs.optimizers import OPTIMIZERS
from loopt.tasks import IGNORE, Task
from loopt.training import Session
from loopt.training.optim import learning_rate
from loopt.training.parallel import Ranks
from loopt.training.task_learner import TaskLearner, shares
from loopt.training.trainer import build_model

SHAPES = {"phop": ("1x6", "p16"), "addition": ("1x12", ""), "igsm": ("1x8", "")}
SECTIONS = ("steps", "together", "profile")


def main() -> None:
    options = read_options()
    if not torch.cuda.is_available():
        raise SystemExit("step_gpu.py: no CUDA device here")
    console = Console(width=130)
    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", highlight=False)
    tasks = [name for name in options.what if name in SHAPES] or list(SHAPES)
    sections = [name for name in options.what if name in SECTIONS] or list(SECTIONS)
    if "steps" in sections:
        console.print(steps_table(tasks, options.steps, console))
    if "together" in sections:
        console.print(together_table(tasks, options.steps))
    if "profile" in sections:
        for task in tasks:
            console.print(profile_table(task))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", nargs="*", choices=(*SECTIONS, *SHAPES, []), help="sections and tasks; all unless given"
    )
    parser.add_argument("--steps", type=int, default=40, help="steps in a timed turn (default 40)")
    return parser.parse_args()


def config_of(task: str, batch_size: int | None = None, optimizer: str = "adamw", seed: int = 0) -> TrainConfig:
    """The paper's shape, with an optimizer that both sides have."""
    plan, variant = SHAPES[task]
    config = EXPERIMENTS[task].configure(LoopPlan.parse(plan), variant, "paper")
    config = replace(config, optim=OPTIMIZERS[optimizer](lr=1e-3, warmup_steps=1000), seed=seed)
    return replace(config, batch_size=batch_size or config.batch_size).resolved()


def learner_of(config: TrainConfig) -> TaskLearner:
    return TaskLearner(config, build_model(config, torch.device("cuda")), 0, Session(), Ranks())


def plain_step(config: TrainConfig) -> Callable[[], None]:
    device = torch.device("cuda")
    model = build_model(config, device)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.optim.lr, fused=True)
    rate = lambda step: learning_rate(step, config.steps, 1.0, config.optim.warmup_steps)  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    task = config.source
    assert isinstance(task, Task)
    mixture = list(zip(task.mixture, shares(config.batch_size, len(task.mixture)), strict=True))
    done = 0

    def padded(rows: Tensor, value: int) -> Tensor:
        return F.pad(rows, (0, task.length - rows.shape[1]), value=value)

    def step() -> None:
        nonlocal done
        optimizer.zero_grad(set_to_none=True)
        batches = [
            one.sample(range(done * count, (done + 1) * count), config.seed, "train", device) for one, count in mixture
        ]
        tokens = torch.cat([padded(batch.tokens, 0) for batch in batches])  # [B, longest]
        targets = torch.cat([padded(batch.targets, IGNORE) for batch in batches])
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(compiled(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip_norm)
        optimizer.step()
        schedule.step()
        done += 1

    return step


def milliseconds(steps: Sequence[Callable[[], None]], count: int, turns: int = 5) -> list[float]:
    """The median time of one call of each, taking turns, so that whatever else happens hits all."""
    taken: list[list[float]] = [[] for _ in steps]
    for _ in range(turns):
        for step, times in zip(steps, taken, strict=True):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(count):
                step()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - began) * 1e3 / count)
    return [statistics.median(times) for times in taken]


def started(step: Callable[[], None]) -> float:
    """Seconds until the first six calls, compilation and capture included, are over."""
    began = time.perf_counter()
    for _ in range(6):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def steps_table(tasks: Sequence[str], count: int, console: Console) -> Table:
    table = Table(title="A training step, ms (median of 5 turns)", title_justify="left")
    for column in ("task", "plan", "batch", "optimizer", "ours", "plain", "plain / ours", "start, s", "generator", "%"):
        table.add_column(column, justify="left" if column in ("task", "plan", "optimizer") else "right")
    for task in tasks:
        for optimizer in ("adamw", "adafactor"):
            torch.compiler.reset()
            config = config_of(task, optimizer=optimizer)
            ours = learner_of(config).train_step
            start = started(ours)
            generator = captured(maker(config.source, config.batch_size, "cuda", compiled_draw()))
            if optimizer == "adamw":
                plain = plain_step(config)
                started(plain)
                mine, theirs, making = milliseconds([ours, plain, generator], count)
                beside = [f"{theirs:.2f}", f"{theirs / mine:.2f}"]
            else:
                mine, making = milliseconds([ours, generator], count)
                beside = ["", ""]
            share = f"{100 * making / mine:.1f}"
            row = [task, str(config.model.plan), str(config.batch_size), optimizer, f"{mine:.2f}", *beside]
            table.add_row(*row, f"{start:.0f}", f"{making:.3f}", share)
            console.print(*row, highlight=False)  # compiling takes a while: show what there is
    return table


def together_table(tasks: Sequence[str], count: int) -> Table:
    table = Table(title="Three seeds of one row, ms for a step of each", title_justify="left")
    for column in ("task", "batch", "one after the other", "together", "ratio"):
        table.add_column(column, justify="left" if column == "task" else "right")
    for task in tasks:
        for batch_size in (32, 64, None):
            config = config_of(task, batch_size)
            seeds = [learner_of(replace(config, seed=seed)) for seed in range(3)]
            for learner in seeds:
                started(learner.train_step)

            def one_by_one(seeds: list[TaskLearner] = seeds) -> None:
                for learner in seeds:
                    learner.train_step()
                    learner.report()

            def together(seeds: list[TaskLearner] = seeds) -> None:
                for learner in seeds:
                    learner.train_step()

            apart, beside = milliseconds([one_by_one, together], count)
            table.add_row(task, str(config.batch_size), f"{apart:.2f}", f"{beside:.2f}", f"{apart / beside:.2f}")
    return table


def profile_table(task: str) -> Table:
    step = learner_of(config_of(task)).train_step
    started(step)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    rows = sorted(profile.key_averages(), key=lambda row: -row.device_time_total)
    total, kernels = sum(row.device_time_total for row in rows) / 3e3, sum(row.count for row in rows) / 3
    table = Table(title=f"{task}: {total:.2f} ms in {kernels:.0f} kernels a step", title_justify="left")
    for column in ("µs a step", "calls", "kernel"):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    for row in rows[:30]:
        table.add_row(f"{row.device_time_total / 3:.0f}", f"{row.count / 3:.0f}", row.key[:96])
    return table


if __name__ == "__main__":
    main()
