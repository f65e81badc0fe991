"""Self-speculation: draft some tokens with few loops, then verify them together with all loops.

A draft is the model read out after fewer loops, so its loops need not be run again: verification goes on from the
states that the drafts ended with, with the tokens side by side, and costs little more than one token does where weights
have to be fetched for any number of them. What is said is what the model with all loops says: the drafts that it agrees
with, and its own choice at the first it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from loopt.attention import Context
from loopt.generation.decoder import Decoder
from loopt.generation.sampling import Sampler
from loopt.generation.settings import Settings
from loopt.generation.stages import Stage
from loopt.generation.turns import Turns
from loopt.model import Caches, LoopedTransformer


class DraftedTurns(Turns):
    """Up to ``draft_tokens`` tokens a turn, greedily chosen."""

    def __init__(self, model: LoopedTransformer, settings: Settings, rows: int, length: int, allowed: int) -> None:
        assert settings.draft_loops is not None
        weight, drafts = model.token_embedding.weight, settings.draft_tokens
        super().__init__(rows, drafts, weight.device)
        self.model, self.drafts = model, drafts
        self.sampler = Sampler(settings, rows, model.config.vocab_size, allowed, weight.device)
        # Drafts may go past the end of a row; what is there then is never said.
        self.decoder = Decoder(model, rows, length + drafts, loops=settings.loops)
        self._before, looped, self._after = self.decoder.plan.around_loop()
        self._drafting, self._verifying = looped[: settings.draft_loops], looped[settings.draft_loops :]
        self._loops, self.stream = len(looped), self.decoder.stream
        self._draft = [Stage(self.stream) for _ in range(drafts)]
        self._verify = Stage(self.stream)
        shape = (rows, drafts, model.config.d_model)
        self._states, self._entered = weight.new_zeros(shape), weight.new_zeros(shape)
        self._said = torch.zeros(rows, drafts, dtype=torch.int64, device=weight.device)  # by the drafts

    def begin(self, prompts: Sequence[Sequence[int]], keys: Sequence[int]) -> None:
        self.decoder.prefill(prompts)
        with self.decoder.on_stream():
            tokens, log_probabilities = self.sampler.choose(self.decoder.logits)
            self.decoder.tokens.copy_(tokens)
            self.tell(tokens[:, None], log_probabilities[:, None], loops=self._loops)

    @torch.inference_mode()
    def next(self) -> None:
        with self.decoder.on_stream():
            for number, stage in enumerate(self._draft):
                stage(partial(self._run_draft, number))
            self._verify(self._run_verify)

    # What follows can be captured: it reads and writes tensors that stay where they are, and never waits.

    def _run_draft(self, number: int) -> None:
        """Reads the last token, or the draft before this one, with few loops, and says what comes next."""
        token = self.decoder.tokens if number == 0 else self._said[:, number - 1]
        positions, context, slots = self._new_tokens(number, 1)
        walk = self.decoder.walk
        # A draft may lie past the longest text; what it says is dropped.
        x = self.model.embed(token.clamp(min=0)[:, None], positions.clamp(max=self.model.config.max_len - 1))
        x = walk(x, self._before, context, slots)  # [B, 1, D]
        self._entered[:, number : number + 1] = x
        x = walk(x, self._drafting, context, slots)
        self._states[:, number : number + 1] = x
        x = walk(x, self._after, context, slots)
        tokens, _ = self.sampler.choose(self.decoder.readout(x[:, 0]))
        self._said[:, number] = tokens

    def _run_verify(self) -> None:
        """Runs the rest of the loops for all drafts, and says what the model with all loops agrees with."""
        _, context, slots = self._new_tokens(0, self.drafts)
        x = self.decoder.walk(self._states, self._verifying, context, slots, self._entered)
        x = self.decoder.walk(x, self._after, context, slots)
        tokens, log_probabilities = self.sampler.choose(self.decoder.readout(x.flatten(0, 1)))  # [B * drafts] each
        tokens, log_probabilities = tokens.view_as(self._said), log_probabilities.view_as(self._said)
        agreed = (tokens == self._said).long().cumprod(1).sum(1)  # [B]: drafts before the first that was wrong
        count = (agreed + 1).clamp(max=self.drafts)
        self.decoder.tokens.copy_(tokens.gather(1, count[:, None] - 1)[:, 0])
        positions = self.decoder.positions + count
        self.decoder.positions.copy_(positions.clamp(max=self.decoder.length - self.drafts))
        self.tell(tokens, log_probabilities, self._loops, count, self.drafts, agreed)

    def _new_tokens(self, first: int, count: int) -> tuple[Tensor, Context, Caches]:
        """Returns the positions of ``count`` tokens from the ``first`` draft on, their context, and their places."""
        decoder = self.decoder
        positions = decoder.positions[:, None] + torch.arange(first, first + count, device=decoder.device)  # [B, count]
        starts = positions[:, 0].tolist() if self.stream is None else []
        return positions, *decoder.new_tokens(positions, starts)
