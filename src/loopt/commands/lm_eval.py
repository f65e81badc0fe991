"""loopt lm-eval: the command line of lm-evaluation-harness, which then knows the model loopt and our tasks."""

from __future__ import annotations

import sys
from pathlib import Path

from loopt.errors import MissingPackageError

TASKS = Path(__file__).parents[1] / "evaluation" / "harness_tasks"
USAGE = """\
usage: loopt lm-eval [run | ls | validate] ...

Hands the rest of the line to lm-evaluation-harness, with one more model, loopt, whose arguments are:

  run=DIRECTORY     of a language model's run
  loops=6           how often to run the loopable block; as often as in training unless given
  checkpoint=best   best, last, or a step

and with the paper's tasks, loopt_svamp and others, unless --include_path names other tasks. For example:

  loopt lm-eval --model loopt --model_args run=runs/lm-75m,loops=6 --tasks lambada_openai,loopt_svamp
  loopt lm-eval ls tasks

The harness's own help: loopt lm-eval run --help
"""


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "--help-all"):
        print(USAGE, end="")
        return 0
    try:
        import lm_eval.__main__ as harness
    except ImportError:
        install = "pip install 'loopt[eval]'"
        raise MissingPackageError(f"lm-eval needs lm-evaluation-harness; install it with: {install}") from None
    import loopt.evaluation.harness  # noqa: F401 (registers the model)

    sys.argv = ["lm-eval", *_with_our_tasks(arguments)]
    harness.cli_evaluate()
    return 0


def _with_our_tasks(arguments: list[str]) -> list[str]:
    """Returns the arguments with the folder of our tasks, unless another is given."""
    named = any(word.partition("=")[0] == "--include_path" for word in arguments)
    return arguments if named or len(arguments) < 2 else [*arguments, "--include_path", str(TASKS)]
