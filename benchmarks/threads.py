"""How long a training step of small models takes with one thread, two, and so on, on this machine as busy as it is.

python benchmarks/threads.py --rounds 5
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from loopt.runs import TrainConfig
from loopt.training import Session, presets
from loopt.training.learner import Learner
from loopt.training.learners import learner_for
from loopt.training.parallel import Ranks
from loopt.training.threads import choose_threads, layer_work
from loopt.training.trainer import build_model, prepare

CPU = torch.device("cpu")
TEXT = Path(__file__).parents[1] / "examples" / "persuasion"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each, in turns; the median is printed")
    parser.add_argument("--steps", type=int, default=4, help="steps in a measurement")
    options = parser.parse_args()
    usual = torch.get_num_threads()
    counts = sorted({1, *(2**i for i in range(1, usual.bit_length()) if 2**i <= usual), usual})
    print(f"load {os.getloadavg()[0]:.1f}, {usual} threads unless told otherwise, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        for name, config in configs(Path(folder)).items():
            learner = learner_for(config.source)(
                config, build_model(config, CPU), 0, Session(device="cpu"), Ranks.join(CPU)
            )
            found = {count: [] for count in counts}
            for _ in range(options.rounds):
                for count in counts:
                    found[count].append(seconds_a_step(learner, count, options.steps))
            torch.set_num_threads(usual)
            chosen, _ = choose_threads([config], Session(), CPU)
            told = ", ".join(
                f"{count} threads {1000 * statistics.median(times):,.0f} ms" for count, times in found.items()
            )
            print(f"{name} ({layer_work(config) / 1e6:,.0f}M multiplications a layer): {told}; chosen now: {chosen}")


def configs(folder: Path) -> dict[str, TrainConfig]:
    text = prepare(presets.lm_cpu(str(TEXT)), folder / "run")
    wide = replace(text, model=replace(text.model, d_model=256, n_heads=8, d_ff=640))
    return {"phop-cpu": presets.phop_cpu().resolved(), "lm-cpu": text, "lm-cpu, d=256": wide}


def seconds_a_step(learner: Learner, threads: int, steps: int) -> float:
    torch.set_num_threads(threads)
    learner.train_step()  # starts the threads
    began = time.perf_counter()
    for _ in range(steps):
        learner.train_step()
    return (time.perf_counter() - began) / steps


if __name__ == "__main__":
    main()
