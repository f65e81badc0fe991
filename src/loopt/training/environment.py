"""What a result was measured on."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

import loopt
from loopt._version import source_hash


def environment(device: torch.device) -> dict[str, str]:
    """Returns hardware, versions, and a hash of loopt's own source."""
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else f"{device.type} {platform.machine()}"
    return {
        "hardware": hardware,
        "loopt": loopt.__version__,
        "source": source_hash(Path(loopt.__file__).parent),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
