"""What a new user does in the first hour, as the documents say it: their code blocks, run one after the other in a
fresh clone with a fresh environment, against the minutes that each part may take.

    python acceptance/journeys.py             # make acceptance
    python acceptance/journeys.py --to 2      # the first two parts only
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from doc_blocks import HOME, Block, blocks_of


@dataclass(frozen=True)
class Journey:
    """A section of a page, and the minutes in which it is to be done."""

    page: str
    section: str | None
    """Its heading, or None for the whole page."""
    minutes: int
    has: str = ":"
    """A command of the shell that makes what the reader brings along."""

    @property
    def name(self) -> str:
        return self.section or self.page.removesuffix(".md")


JOURNEYS = (
    Journey("get-started.md", "See it work", 3),
    Journey("own-task.md", None, 10, has="cp examples/own_task.py my_task.py"),
    Journey("get-started.md", "Train, load, run with more loops", 5),  # 2 of them for training
    Journey("get-started.md", "Your own text", 10, has="mkdir my-texts && cp docs/*.md my-texts"),
)


def script(journeys: tuple[Journey, ...]) -> str:
    """Returns the shell script of these journeys, which share a shell, as a reader's commands do."""
    lines = ["set -euo pipefail", "export MPLBACKEND=agg"]
    for journey in journeys:
        lines += [f'echo "== {journey.name}"', journey.has, "SECONDS=0"]
        for block in blocks_of(HOME / "docs" / journey.page, journey.section):
            lines += shell_of(block)
        lines.append(f'echo "{journey.name}|$SECONDS" >> "$TIMES"')
    return "\n".join(lines) + "\n"


def shell_of(block: Block) -> list[str]:
    if block.reason is not None:
        return []
    if block.title is not None:
        return [f"cat > {block.title} <<'END_OF_BLOCK'", block.code + "END_OF_BLOCK"]
    if block.language == "python":
        return ["python - <<'END_OF_BLOCK'", block.code + "END_OF_BLOCK"]
    return [block.code.replace("<this repository>", f"'{HOME}'")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=int, default=len(JOURNEYS), help="how many of the journeys, from the first on")
    journeys = JOURNEYS[: parser.parse_args().to]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with tempfile.TemporaryDirectory(prefix="loopt-acceptance-") as folder:
        times = Path(folder) / "times"
        times.touch()
        command = ["bash", "-c", script(journeys)]
        code = subprocess.run(command, cwd=folder, env=environment | {"TIMES": str(times)}, check=False).returncode
        taken = dict(line.split("|") for line in times.read_text().splitlines())
    late = False
    for journey in journeys:
        seconds = taken.get(journey.name)
        late |= seconds is None or int(seconds) > 60 * journey.minutes
        spent = "not finished" if seconds is None else f"{int(seconds) / 60:.1f} minutes"
        print(f"{journey.name}: {spent}, at most {journey.minutes}")
    return code or int(late)


if __name__ == "__main__":
    sys.exit(main())
