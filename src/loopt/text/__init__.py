"""Text for language models: from documents to shards of tokens, and from those to sequences in a fixed order.

Nothing is imported here: preparing starts many workers, and none of them needs torch.
"""
