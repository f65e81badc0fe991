"""Text for language models: documents are tokenized into shards, and read back as sequences in a reproducible order.

Nothing is imported here: preparing starts many workers, and none of them needs torch.
"""
