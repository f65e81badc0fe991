"""What the package says of itself on PyPI, which resolves no relative links: README's become absolute.

LOOPT_REPOSITORY is the repository's address, such as https://github.com/OWNER/loopt; without it README is as it is. The
release workflow and `make release-check` set it.
"""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAPER = "https://arxiv.org/abs/2502.17416"


class CustomMetadataHook(MetadataHookInterface):
    """Sets README and addresses when the package is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("LOOPT_REPOSITORY", "").rstrip("/")
        root = Path(self.root)
        readme, urls = (root / "README.md").read_text(encoding="utf-8"), {"Paper": PAPER}
        if repository:
            version = runpy.run_path(str(root / "src/loopt/_version.py"))["__version__"]
            readme = with_absolute_links(readme, repository, f"v{version}")
            urls |= {"Repository": repository, "Changelog": f"{repository}/blob/v{version}/CHANGELOG.md"}
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
        metadata["urls"] = urls


def with_absolute_links(markdown: str, repository: str, tag: str) -> str:
    """Returns Markdown whose links and images lead to the files of a tag; links within the page stay.

    >>> with_absolute_links("![a](b.png), [c](d.md#e), [f](#g)", "https://github.com/OWNER/loopt", "v1")
    '![a](https://github.com/OWNER/loopt/raw/v1/b.png), [c](https://github.com/OWNER/loopt/blob/v1/d.md#e), [f](#g)'
    """

    def absolute(found: re.Match[str]) -> str:
        kind = "raw" if found["image"] else "blob"
        return f"{found['image']}[{found['text']}]({repository}/{kind}/{tag}/{found['path']})"

    markdown = re.sub(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!\w+:|#)(?P<path>[^)]+)\)", absolute, markdown)
    return markdown.replace("<this repository>", repository)
