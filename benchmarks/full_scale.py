"""What the paper's language models cost: GPU-hours of every row, by the operations it takes and a measured speed.

    python benchmarks/full_scale.py                  the tables of docs/full-scale.md
    python benchmarks/full_scale.py --tflops 400     at another speed of a GPU

A row is trained once however many tables have it; it is counted where it stands first. What several GPUs lose to each
other is not in it: give the speed that your cluster reaches, which metrics.jsonl has as ``tflops``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from loopt.reproduce.experiment import Job, jobs_of
from loopt.reproduce.language import language_experiments

TFLOPS = 534
"""Of lm-1b (4⊗6), 8 sequences of 1280 tokens on an H200 (docs/language-models.md); (24⊗1) is taken to be as fast."""
TABLES = ("language", "regularization", "depth-scaling")
GPUS = 64
"""8 sequences on each make the paper's batch of 512."""
ROW = "| {} | {:.2f}B | {:.2f} | {:,.0f} | {:.0f} |"


def gpu_hours(job: Job, tflops: float) -> float:
    """Returns the hours that a GPU of this speed takes for a run: forward, and twice as much backward."""
    return operations(job) / tflops / 1e12 / 3600


def operations(job: Job) -> float:
    config = job.config
    return 3.0 * config.model.flops(config.model.max_len) * config.batch_size * config.steps


def new_rows(name: str, seen: set[str]) -> Iterator[Job]:
    """Yields the runs of an experiment that were not seen before."""
    for job in jobs_of(language_experiments("data/language")[name], "paper", seeds=1):
        if job.name not in seen:
            seen.add(job.name)
            yield job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tflops", type=float, default=TFLOPS, help="of one GPU, of the model by effective depth")
    tflops, seen, total = parser.parse_args().tflops, set[str](), 0.0
    for name in TABLES:
        jobs = list(new_rows(name, seen))
        hours = sum(gpu_hours(job, tflops) for job in jobs)
        total += hours
        print(f"`{name}`: {hours:,.0f} GPU-hours for {len(jobs)} rows\n")
        print(f"| row | parameters | 10²¹ operations | GPU-hours | hours on {GPUS} GPUs |\n|---|--:|--:|--:|--:|")
        for job in jobs:
            numbers = job.config.model.parameters() / 1e9, operations(job) / 1e21, gpu_hours(job, tflops)
            print(ROW.format(job.row.name, *numbers, numbers[2] / GPUS))
        print()
    print(f"All three: {total:,.0f} GPU-hours.")


if __name__ == "__main__":
    main()
