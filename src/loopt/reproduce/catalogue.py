"""Every experiment there is, by name."""

from __future__ import annotations

from loopt.reproduce.addition import addition
from loopt.reproduce.experiment import Experiment
from loopt.reproduce.group import group
from loopt.reproduce.igsm import igsm
from loopt.reproduce.loops import loops
from loopt.reproduce.phop import phop

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (addition, phop("planted"), phop("uniform"), igsm("light"), igsm("even"), group, loops)
}
