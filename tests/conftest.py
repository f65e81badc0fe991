"""Its being here puts tests/ on the path, for the helpers that lie beside it."""

import torch
from hypothesis import settings

settings.register_profile("suite", max_examples=50)  # unless a test says how many; its default is twice that
settings.load_profile("suite")
torch.set_num_threads(1)  # tensors are tiny here, and several threads on a busy machine take many times as long
