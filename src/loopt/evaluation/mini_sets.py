"""The invented mini-sets that come with the package, in the layout of the real ones."""

from __future__ import annotations

from pathlib import Path


def mini_data_dir() -> Path:
    """Returns the folder with a few invented questions for each data set; ``mini/README.md`` says so, too."""
    return Path(__file__).parent / "mini"
