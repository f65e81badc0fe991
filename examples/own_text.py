"""Train a small language model on a folder of your own text, .txt or .md, and have it write.

python examples/own_text.py my-notes/ --prompt "It is"
python examples/own_text.py examples/persuasion --steps 600 --loops 6
"""

import argparse
from dataclasses import replace
from pathlib import Path

import loopt
from loopt.training import presets, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", help="a folder of .txt or .md files, at least three")
    parser.add_argument("--run", type=Path, default=Path("runs/own-text"), help="where the trained model goes")
    parser.add_argument("--steps", type=int, default=300, help="steps of training, each of 16 x 128 tokens")
    parser.add_argument("--prompt", default="It is", help="what it goes on with")
    parser.add_argument("--loops", type=int, default=None, help="loops when it writes; as in training unless given")
    options = parser.parse_args()

    config = presets.lm_cpu(options.text)  # a frozen dataclass: every field can be replaced
    warmup = min(config.optim.warmup_steps, options.steps // 4)
    config = replace(config, steps=options.steps, optim=replace(config.optim, warmup_steps=warmup))
    outcome = train(config, options.run)  # the same command again resumes, or finds it finished
    print(f"perplexity on text that was held out: {outcome.result['perplexity']:.1f}")

    model = loopt.load(options.run)
    for piece in loopt.stream(
        model, options.prompt, max_new_tokens=60, loops=options.loops, temperature=0.8, top_p=0.95, seed=0
    ):
        print(piece.text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
