"""Where things run."""

from __future__ import annotations

from typing import Literal

import torch

from loopt.errors import InputError

DeviceName = Literal["auto", "cpu", "cuda", "mps"]


def pick_device(name: DeviceName) -> torch.device:
    """The device of that name; auto takes the first of cuda, mps and cpu that is there."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    there = [kind for kind, is_there in available.items() if is_there]
    if name != "auto" and name not in there:
        raise InputError(f"device={name}: not available here; allowed is auto | {' | '.join(there)}")
    return torch.device(there[0] if name == "auto" else name)
