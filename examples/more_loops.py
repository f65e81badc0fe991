"""Run a trained model with other numbers of loops than it was trained with, and plot its accuracy.

loopt train phop-cpu --run runs/mine
python examples/more_loops.py runs/mine --loops 1 2 3 4 5 6 8
"""

import argparse
from pathlib import Path

import loopt
from loopt.analysis.loops import task_points


def accuracy_by_loops(directory: Path, loops: list[int], examples: int) -> dict[int, float]:
    """Returns the accuracy on test examples of a run's task, for each number of loops."""
    run, model = loopt.load_run(directory), loopt.load(directory)
    points = task_points(model, run.config.source.tests, loops, "test", examples)
    found: dict[int, float] = {}
    for point in points:
        found[point.loops] = point.accuracy
        print(f"{point.loops:3} loops  {point.accuracy:6.1%}")
    return found


def plot(found: dict[int, float], trained: int, file: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    axes.plot(list(found), list(found.values()), marker="o", color="#0072b2")
    axes.axvline(trained, color="gray", linestyle=":")
    axes.annotate(" trained", (trained, 0.02), color="gray")
    axes.set(xlabel="loops at inference", ylabel="accuracy", ylim=(0, 1.05))
    figure.savefig(file)
    print(f"plotted in {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="directory of a run that was trained on a task")
    parser.add_argument("--loops", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 8])
    parser.add_argument("--examples", type=int, default=2048, help="how many test examples")
    parser.add_argument("--out", type=Path, default=Path("loops.png"), help="where the figure goes")
    options = parser.parse_args()
    plan = loopt.load_run(options.run).config.model.plan
    trained = max(step.loop for step in plan.steps) + 1
    plot(accuracy_by_loops(options.run, options.loops, options.examples), trained, options.out)


if __name__ == "__main__":
    main()
