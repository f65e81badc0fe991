"""What a result was measured on."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import torch

import loopt


def environment(device: torch.device) -> dict[str, str]:
    """Hardware, versions, and a hash of the source."""
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else f"{device.type} {platform.machine()}"
    source = hashlib.sha256()
    for path in sorted(Path(loopt.__file__).parent.rglob("*.py")):
        source.update(path.read_bytes())
    return {
        "hardware": hardware,
        "loopt": loopt.__version__,
        "source": source.hexdigest()[:16],
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
