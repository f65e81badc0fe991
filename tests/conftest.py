"""Its being here puts tests/ on the path, for the helpers that lie beside it."""

import torch

torch.set_num_threads(1)  # tensors are tiny here, and several threads on a busy machine take many times as long
