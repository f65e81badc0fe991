"""Every experiment there is, by name."""

from __future__ import annotations

from loopt.reproduce.addition import addition
from loopt.reproduce.addition_lengths import addition_lengths
from loopt.reproduce.experiment import Experiment
from loopt.reproduce.group import group
from loopt.reproduce.group_growing import group_growing
from loopt.reproduce.igsm import igsm
from loopt.reproduce.language import language_experiments
from loopt.reproduce.loops import loops
from loopt.reproduce.more_loops import more_loops
from loopt.reproduce.phop import phop

LANGUAGE: dict[str, Experiment] = language_experiments()
"""Those of language models, which need text to train on."""

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        addition,
        phop("planted"),
        phop("uniform"),
        igsm("light"),
        igsm("light", "any"),
        igsm("even"),
        group,
        group_growing,
        loops,
        more_loops,
        addition_lengths,
    )
}
"""Those of models that learn a task."""
