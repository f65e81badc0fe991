"""Choosing the device to run on."""

from __future__ import annotations

from typing import Literal

import torch

from loopt.errors import InputError

DeviceName = Literal["auto", "cpu", "cuda", "mps"]


def pick_device(name: DeviceName) -> torch.device:
    """Returns the device of that name; auto takes the first of cuda, mps and cpu that is available."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    found = [kind for kind, is_available in available.items() if is_available]
    if name != "auto" and name not in found:
        raise InputError(f"device={name}: not available here; allowed is auto | {' | '.join(found)}")
    return torch.device(found[0] if name == "auto" else name)
