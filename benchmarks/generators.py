"""Examples a second of every task's sampler, at the paper's shapes.

    python benchmarks/generators.py                         both parts; the second where there is a CUDA device
    python benchmarks/generators.py cpu                     one of them, about a minute
    python benchmarks/generators.py cuda --batches 65536    with other batches than 256 and 4096
    python benchmarks/generators.py --help                  what can be changed

cpu   One thread, by the seconds of CPU that it uses, which other programs disturb less than those on the clock.
cuda  Three ways: called as it is (eager), captured in a CUDA graph, and compiled and captured, as the trainer does it.

A batch of a mixture, such as sums of 2 to 32 numbers, has an equal share of each of its parts. i-GSM stands beside the
public generator of Ye et al.'s problems, whose speed, for its medium size on one core, was measured elsewhere.

Nothing is asserted about time: machines differ, and other programs run on them.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from loopt import tasks
from loopt.random_bits import Stream
from loopt.tasks import IGSM, Batch, PHop, Task
from loopt.training.task_learner import shares

# The tasks' defaults are the paper's shapes.
SHAPES: dict[str, Task] = {
    **{name: tasks.get(name) for name in tasks.names()},
    "phop, uniform": PHop(sampler="uniform"),
    "igsm, even": IGSM(law="even"),
}
PUBLIC_IGSM = 29
"""What the public generator of i-GSM makes in a second on one core, of medium size. Not measured here."""
WARM_UP = 3


def main() -> None:
    options = read_options()
    console = Console(width=120)
    if options.part == "cuda" and not torch.cuda.is_available():
        raise SystemExit("generators.py: no CUDA device here")
    if options.part != "cuda":
        console.print(cpu_table(options))
    if options.part != "cpu" and torch.cuda.is_available():
        console.print(cuda_table(options))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("all", "cpu", "cuda"), default="all", help="where to measure")
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 4096], help="sizes of batches")
    parser.add_argument("--seconds", type=float, default=0.5, help="that a turn takes, about (default 0.5)")
    parser.add_argument("--turns", type=int, default=5, help="of each, whose median counts (default 5)")
    return parser.parse_args()


def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    name = next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.processor())
    return name or platform.machine()


def cpu_table(options: argparse.Namespace) -> Table:
    torch.set_num_threads(1)
    machine = f"one thread of {cpu_name()}, {os.cpu_count()} cores, torch {torch.__version__}"
    table = Table(title=f"Examples a second, {machine}", title_justify="left")
    add_columns(table, "examples a second")
    for name, task in measured(SHAPES):
        for batch_size in options.batches:
            seconds = median_seconds(maker(task, batch_size, "cpu"), time.process_time, options)
            rate = batch_size / seconds
            table.add_row(name, str(task.length), f"{batch_size:,}", rounded(rate), beside_public(task, rate))
    return table


def cuda_table(options: argparse.Namespace) -> Table:
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    table = Table(title=f"Examples a second, {machine}", title_justify="left")
    add_columns(table, "eager", "captured", "compiled, captured")
    for name, task in measured(SHAPES):
        for batch_size in options.batches:
            torch.compiler.reset()
            ways = (
                maker(task, batch_size, "cuda"),
                captured(maker(task, batch_size, "cuda")),
                captured(maker(task, batch_size, "cuda", compiled_draw())),
            )
            rates = [batch_size / median_seconds(way, device_clock, options) for way in ways]
            ratio = beside_public(task, max(rates))
            table.add_row(name, str(task.length), f"{batch_size:,}", *map(rounded, rates), ratio)
    return table


def measured(shapes: dict[str, Task]) -> Iterable[tuple[str, Task]]:
    """All of them, with a bar that no thread of its own keeps up to date: its work would count as ours."""
    return track(shapes.items(), "measuring", auto_refresh=False, console=Console(stderr=True))


def add_columns(table: Table, *rates: str) -> None:
    table.add_column("task")
    for column in ("tokens", "batch", *rates, f"times the public {PUBLIC_IGSM} a core"):
        table.add_column(column, justify="right")


def beside_public(task: Task, rate: float) -> str:
    return rounded(rate / PUBLIC_IGSM) if task.name == "igsm" else ""


def rounded(number: float) -> str:
    """With three digits that count: the others are noise."""
    return f"{float(f'{number:.3g}'):,.0f}"


def draw(part: Task, indices: Tensor, stream: Stream) -> Batch:
    return part.draw(indices, stream)


def compiled_draw() -> Callable[..., Batch]:
    """As the trainer has it: one compilation for every part of a mixture."""
    return torch.compile(draw, dynamic=False)


def maker(task: Task, batch_size: int, device: str, draw: Callable[..., Batch] = draw) -> Callable[[], None]:
    """Makes the next batch each time it is called, from a counter on the device, as a training step does."""
    parts = list(zip(task.mixture, shares(batch_size, len(task.mixture)), strict=True))
    done = torch.zeros(1, dtype=torch.int64, device=device)

    def make() -> None:
        for part, count in parts:
            indices = done * count + torch.arange(count, device=device)  # [count]
            draw(part, indices, Stream(part.name, 0, "train"))
        done.add_(1)

    return make


def captured(make: Callable[[], None]) -> Callable[[], None]:
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(WARM_UP):
            make()
    beside.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        make()
    return graph.replay


def device_clock() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def median_seconds(make: Callable[[], None], clock: Callable[[], float], options: argparse.Namespace) -> float:
    """Of one call, in turns of as many as fill the time given."""

    def taken(calls: int) -> float:
        began = clock()
        for _ in range(calls):
            make()
        return (clock() - began) / calls

    taken(WARM_UP)
    calls = max(1, round(options.seconds / taken(WARM_UP)))
    return statistics.median(taken(calls) for _ in range(options.turns))


if __name__ == "__main__":
    main()
