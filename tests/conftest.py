"""Its being here puts tests/ on the path, for the helpers that lie beside it."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("suite", max_examples=50)  # unless a test says how many; its default is twice that
settings.load_profile("suite")
torch.set_num_threads(1)  # tensors are tiny here, and several threads on a busy machine take many times as long


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Has files with slow tests begin, so that at the end no worker waits for another's long file."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
