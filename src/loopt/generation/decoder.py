"""Decoding with a cache: prompts at once, then one token of every row a step.

Rows have different lengths. A prompt is padded at its end, where no token of it looks, and what the padding leaves in
the cache is overwritten by the tokens that come; so every row is computed as if it were alone.

With an exit rule, a row that leaves the loop early keeps its state, and its token's places of the later loops get the
keys and values of the loop it left after. The other rows go on, and what is computed for it meanwhile is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from loopt.attention import Context
from loopt.errors import InputError
from loopt.generation.attention import NewTokens, PromptSlot, StepSlot, attend_new, attend_prompt
from loopt.generation.cache import CachePolicy, KeyValueCache
from loopt.generation.exits import ExitRule, Moment, check_exit
from loopt.generation.plain_layer import fits_plainly, plain_layers
from loopt.generation.stages import Stage
from loopt.kernels import decode_kernels
from loopt.model import Caches, LoopedTransformer
from loopt.plan import Pass

BUCKET = 64
"""On CUDA prompts are padded to a multiple of so many tokens: attention makes a plan for every new length."""

Choose = Callable[[Tensor, Tensor], Tensor]
"""Logits [B, V], and the loops they took [B] -> the next token of each row [B]."""


class Decoder:
    """A model with a cache for ``batch`` rows of up to ``length`` tokens.

    After ``prefill`` and after each ``step``, ``logits`` [B, V] say what comes next, or with ``choose`` ``tokens`` [B],
    what that has made of them; ``loops_used`` [B] is how many loops the last token read of each row took."""

    def __init__(
        self,
        model: LoopedTransformer,
        batch: int,
        length: int,
        *,
        loops: int | None = None,
        policy: CachePolicy | None = None,
        exit_rule: ExitRule | None = None,
        choose: Choose | None = None,
    ) -> None:
        self.model, self.batch, self.length, self.rule, self.choose = model, batch, length, exit_rule, choose
        self.plan, policy = model.plan_with(loops), policy or CachePolicy()
        self.device = device = model.token_embedding.weight.device
        self.cache = KeyValueCache(
            model.config, self.plan, batch, length, policy, device, model.token_embedding.weight.dtype
        )
        self.tokens = torch.zeros(batch, dtype=torch.int64, device=device)
        self.positions = torch.zeros(batch, dtype=torch.int64, device=device)  # of each row's next token
        exact = torch.promote_types(model.token_embedding.weight.dtype, torch.float32)
        self.logits = torch.zeros(batch, model.config.vocab_size, device=device, dtype=exact)
        self.loops_used = torch.zeros(batch, dtype=torch.int64, device=device)
        self._plainly = plain_layers(model) if device.type == "cpu" and fits_plainly(model.config) else None
        self._starts = [0] * batch  # the positions, as far as the host needs to know them
        stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.stream = stream
        if exit_rule is None:
            self._whole = Stage(stream)
        else:
            check_exit(exit_rule, model)
            if policy.name != "all":
                raise InputError(f"cache={policy.name}: allowed is all with an exit rule, whose rows copy places")
            self._before, self._looped, self._after = self.plan.around_loop()
            self._enter, self._leave = Stage(stream), Stage(stream)
            self._loops = [Stage(stream) for _ in self._looped]
            shape = (batch, 1, model.config.d_model)
            self._state, self._entered = (model.token_embedding.weight.new_zeros(shape) for _ in range(2))
            self._read_out = torch.zeros_like(self.logits)  # log-probabilities after the last loop, for the rule
            self._left = torch.zeros(batch, dtype=torch.bool, device=device)
            self._all_left = torch.zeros((), dtype=torch.bool, device=device)

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Reads prompts, one for each row, with all loops; whatever rows held before is forgotten."""
        lengths = [len(prompt) for prompt in prompts]
        longest = min(self.length, self.model.config.max_len)
        if len(prompts) != self.batch or not 1 <= min(lengths) <= max(lengths) <= longest:
            raise InputError(
                f"{len(prompts)} prompts of {min(lengths, default=0)} to {max(lengths, default=0)} tokens: "
                f"allowed are {self.batch} of 1 to {longest}, what the cache has room for"
            )
        padded = max(lengths)
        if self.device.type == "cuda":
            padded = min(-(-padded // BUCKET) * BUCKET, self.model.config.max_len)
        ids = torch.zeros(self.batch, padded, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        with self.on_stream():
            self._read_prompts(ids.to(self.device), torch.tensor(lengths, device=self.device))
        self._starts = lengths

    def _read_prompts(self, ids: Tensor, until: Tensor) -> None:
        """Reads prompts [B, T], of which row b has tokens up to until[b]."""
        slots = {key: PromptSlot(place, until) for key, place in self.cache.places.items()}
        context = self.model.context(((ids.shape[0], ids.shape[1]),), attend=attend_prompt)
        x = self.walk(self.model.embed(ids), self.plan.passes, context, slots)
        last = x[torch.arange(self.batch, device=self.device), until - 1]  # [B, T, D] -> [B, D]
        self.positions.copy_(until)
        self.loops_used.fill_(self._most_loops)
        self._say(self.readout(last))

    @property
    def _most_loops(self) -> int:
        return 1 if self.plan.loopable is None else self.plan.blocks[self.plan.loopable].loops

    @torch.inference_mode()
    def step(self, tokens: Tensor | None = None) -> None:
        """Reads the next token [B] of every row: the chosen ones, unless others are given. A row that has come to the
        end of the cache stays there."""
        with self.on_stream():
            if tokens is not None:
                self.tokens.copy_(tokens)
            if self.rule is None:
                self._whole(self._run_whole)
            else:
                self._enter(self._run_enter)
                for loop, stage in enumerate(self._loops):
                    stage(partial(self._run_loop, loop))
                    if bool(self._all_left):
                        break
                self._leave(self._run_leave)
        self._starts = [min(start + 1, self.length - 1) for start in self._starts]

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Has what is queued before run first, and what is queued later, such as reading the logits, wait."""
        if self.stream is None:
            yield
            return
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)

    # What follows can be captured: it reads and writes tensors that stay where they are, and never waits.

    def new_tokens(self, positions: Tensor, starts: list[int]) -> tuple[Context, Caches]:
        """Returns the context of new tokens at positions [B, T], the first of each row at ``starts``, and where their
        keys and values go."""
        rows, tokens = positions.shape
        kernels = decode_kernels(self.model, rows * tokens)
        if kernels.attend is not None:
            attend, new = kernels.attend, NewTokens(positions, None, self.length, None)
        else:
            attend = attend_new
            new = NewTokens.at(positions, starts if self.stream is None else None, self.length)  # graphs do not change
        slots = {key: StepSlot(place, new) for key, place in self.cache.places.items()}
        # A draft may lie past the longest text; what it says is dropped.
        read_as = positions.clamp(max=self.model.config.max_len - 1)
        context = self.model.context(((rows, tokens),), read_as, attend)
        return context._replace(run_layer=kernels.run_layer or self._plainly), slots

    def readout(self, x: Tensor) -> Tensor:
        """Reads the logits [B, V] out of the last states [B, D], in float32 or better."""
        model, read_out = self.model, decode_kernels(self.model, len(x)).read_out
        if read_out is None:
            return model.readout(x).to(self.logits.dtype)
        logits = torch.empty(len(x), self.logits.shape[1], dtype=self.logits.dtype, device=self.device)
        read_out(x, model.final_norm, model.readout_weight, logits)
        return logits

    def walk(
        self, x: Tensor, passes: Sequence[Pass], context: Context, slots: Caches, entered: Tensor | None = None
    ) -> Tensor:
        """Runs passes with the cache, and returns the last state."""
        for state in self.model.loop.walk(x, passes, context, slots, entered):
            x = state
        return x

    def _new_token(self) -> tuple[Context, Caches]:
        return self.new_tokens(self.positions[:, None], self._starts)

    def _embed(self) -> Tensor:
        return self.model.embed(self.tokens.clamp(min=0)[:, None], self.positions[:, None])  # [B, 1, D]

    def _run_whole(self) -> None:
        context, slots = self._new_token()
        x = self.walk(self._embed(), self.plan.passes, context, slots)
        self._say(self.readout(x[:, 0]))
        self._move_on()

    def _say(self, logits: Tensor) -> None:
        if self.choose is None:
            self.logits.copy_(logits)
        else:
            self.tokens.copy_(self.choose(logits, self.loops_used))

    def _move_on(self) -> None:
        self.positions.add_(1).clamp_(max=self.length - 1)

    def _run_enter(self) -> None:
        context, slots = self._new_token()
        x = self.walk(self._embed(), self._before, context, slots)
        self._state.copy_(x)
        self._entered.copy_(x)
        self._left.fill_(False)
        self._all_left.fill_(False)
        self.loops_used.fill_(len(self._looped))

    def _run_loop(self, loop: int) -> None:
        assert self.rule is not None
        context, slots = self._new_token()
        before = self._state.clone()
        x = self.walk(before, self._looped[loop : loop + 1], context, slots, self._entered)
        x = torch.where(self._left[:, None, None], before, x)
        self._state.copy_(x)
        if loop == len(self._looped) - 1:
            return
        read_before = self._read_out.clone() if loop and self.rule.reads_out else None
        read_now = None
        if self.rule.reads_out:
            self._read_out.copy_(self._logits_of(x, context, slots).log_softmax(1))
            read_now = self._read_out
        moments = Moment(before[:, 0], read_before), Moment(x[:, 0], read_now)
        leaves = self.rule.leaves(self.model, *moments) & ~self._left
        self.loops_used.copy_(torch.where(leaves, loop + 1, self.loops_used))
        self._left.logical_or_(leaves)
        self._all_left.copy_(self._left.all())

    def _run_leave(self) -> None:
        context, slots = self._new_token()
        assert self.plan.loopable is not None
        self.cache.copy_exits(self.plan.loopable, self.loops_used - 1, self.positions)
        self._say(self._logits_of(self._state, context, slots))
        self._move_on()

    def _logits_of(self, x: Tensor, context: Context, slots: Caches) -> Tensor:
        """Reads out [B, V] after the blocks behind the loopable one."""
        return self.readout(self.walk(x, self._after, context, slots)[:, 0])
