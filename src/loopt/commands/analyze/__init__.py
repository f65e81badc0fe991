"""loopt analyze gap | difference | scaling | isoplot | similarity | loops | probe | exit | cache | drafts"""

from __future__ import annotations

import importlib

from loopt.commands.parsing import choose

USAGE = """\
usage: loopt analyze gap BASE LOOPED DEEP   % Gap: how much of the way from (k⊗1) to (kL⊗1) looping covers
       loopt analyze difference BASE MODEL  how much more a model scores than another, and how well that is known
       loopt analyze scaling FILE ...       scores against depth, by looping and by layers; what a loop is worth
       loopt analyze isoplot RUN ...        scores against log-perplexity as training proceeds
       loopt analyze similarity RUN ...     how alike a run's layers are, as numbers and heatmaps
       loopt analyze loops RUN              quality against the number of loops at inference
       loopt analyze probe RUN              which true intermediate values can be read from the state after each loop
       loopt analyze exit RUN               quality against loops, for rules that end a token's loops early
       loopt analyze cache RUN              memory and quality of caches that keep less
       loopt analyze drafts RUN             self-speculation: how many drafts are right, and how much faster that is

The first three read finished runs or result files; the others run the model. For example:

  loopt analyze gap results/phop/short/1x1-p16-seed0.json results/phop/short/1x6-p16-seed0.json \\
    results/phop/short/6x1-p16-seed0.json
  loopt analyze loops runs/lm-cpu --loops 1 2 3 4
"""

FILES = {
    "gap": "gap",
    "difference": "difference",
    "scaling": "scaling",
    "isoplot": "isoplot",
    "similarity": "similarity",
    "loops": "loops",
    "probe": "probe",
    "exit": "decoding",
    "cache": "decoding",
    "drafts": "decoding",
}


def main(arguments: list[str]) -> int:
    match choose(arguments, USAGE, "analysis", list(FILES)):
        case (name, options):
            importlib.import_module(f"loopt.commands.analyze.{FILES[name]}").main(name, options)
    return 0
