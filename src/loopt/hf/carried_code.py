"""The code that an exported model carries: these files, in one folder, with imports from each other.

An exported model carries this file too, since it may be saved again where loopt is not installed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

CARRIED = (
    *("errors.py", "limits.py", "plan.py", "attention.py", "model_config.py", "model.py"),
    *("hf/carried_code.py", "hf/configuration_looped.py", "hf/modeling_looped.py"),
)
"""Files of the package, what imports them after them."""
AUTO_MAP = {
    "AutoConfig": "configuration_looped.LoopedConfig",
    "AutoModel": "modeling_looped.LoopedModel",
    "AutoModelForCausalLM": "modeling_looped.LoopedForCausalLM",
}


def write_code(folder: str | os.PathLike[str]) -> None:
    """Writes the code of looped models into a folder, where Transformers finds it with ``trust_remote_code=True``."""
    for name in CARRIED:
        text = _find(name).read_text(encoding="utf-8")
        relative = re.sub(r"^from loopt\.(?:hf\.)?(\w+) import ", r"from .\1 import ", text, flags=re.MULTILINE)
        (Path(folder) / Path(name).name).write_text(relative, encoding="utf-8")


def _find(name: str) -> Path:
    """Returns the file in the package, or beside this one where it was carried to."""
    here = Path(__file__).resolve().parent
    in_package = here.parent / name
    return in_package if here.name == "hf" and in_package.is_file() else here / Path(name).name
