"""Training a language model on prepared text.

Which sequences a step has depends on data, seed and step alone. Each rank reads its shard of them, some at a time.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch.nn.parallel import DistributedDataParallel

from loopt.errors import InputError, require
from loopt.kernels import compile_model
from loopt.model import LoopedTransformer
from loopt.runs import TrainConfig
from loopt.scoring.perplexity import mean_loss, perplexity
from loopt.scoring.precision import bfloat16_copy, computes_in_bfloat16, scoring_batch
from loopt.source import Split
from loopt.text.order import sequence_at
from loopt.text.source import Text
from loopt.training.chunked_loss import chunked_loss
from loopt.training.exit_gate import gate_loss, with_gradient_of
from loopt.training.learner import Evaluation, Learner
from loopt.training.parallel import Ranks, shard_model
from loopt.training.session import Session

PEAK_TFLOPS = {"H100": 989.0, "H200": 989.0, "B200": 2250.0, "A100": 312.0, "L40S": 362.0, "RTX 4090": 165.0}
"""Dense bfloat16 matrix products, by the makers' data sheets."""

ACTIVATION_MEMORY_BUDGET = 0.7
"""Of what a compiled layer would keep for the backward pass, the share that it may: that leaves out norms and products
of activations, which cost next to nothing to compute again, and no matrix product."""

GATE_EVERY = 8
"""The exit gate learns from every so many tokens."""


class LanguageLoss(nn.Module):
    """The model with its loss, as the one module that runs forward: what is sharded over ranks."""

    def __init__(self, model: LoopedTransformer, compiled: bool) -> None:
        super().__init__()
        self.model = model
        self.compiled = compiled

    def forward(self, tokens: Tensor, weights: Tensor, loops: int | None = None) -> Tensor:
        """Returns the loss of predicting each token [B, T + 1] from those before, summed with weights [B]."""
        model, targets = self.model, tokens[:, 1:]
        context = model.context(((targets.shape[0], targets.shape[1]),))
        record: list[Tensor] | None = [] if model.config.has_exit_gate and torch.is_grad_enabled() else None
        x = model.final_norm(model.iterate(model.embed(tokens[:, :-1]), loops, context, record))  # [B, T, D]
        each = weights[:, None].expand(targets.shape)  # [B, T]
        loss = chunked_loss(
            x.flatten(0, 1), model.readout_weight, targets.flatten(), each.flatten(), compiled=self.compiled
        )
        if record is None:
            return loss
        of_batch = gate_loss(model, record, loops, context, each, GATE_EVERY) * each.sum()
        return with_gradient_of(loss, of_batch)


class TextLearner(Learner):
    """Trains on the next sequences. On CUDA a copy of the weights in bfloat16 computes, made anew each step; what is
    updated stays in float32. A sharded model makes that copy itself, as it gathers its weights."""

    def set_up(self) -> bool:
        config, model, ranks, parallel = self.config, self.model, self.ranks, self.session.parallel
        self.copied = computes_in_bfloat16(self.device) and not (ranks.distributed and parallel == "fsdp")
        self.computing = bfloat16_copy(model) if self.copied else model
        if self.compiled:
            compile_model(self.computing)
        self.loss = shard_model(LanguageLoss(self.computing, self.compiled), self.computing, ranks, parallel)
        assert isinstance(config.source, Text)
        self.data, self.length = config.source.tokens, config.model.max_len
        self.sequences = self.data.sequences("train", self.length)
        share = config.batch_size // ranks.size
        self.micro_batch = self.session.micro_batch or share
        self.tokens = torch.zeros(share, self.length + 1, dtype=torch.int64, device=self.device)
        # A small model's step is over before the host has launched it; a large one's is made of micro-batches.
        one_graph = not ranks.distributed and self.micro_batch == share and not model.loop.recompute
        return self.device.type == "cuda" and one_graph

    @staticmethod
    def check(config: TrainConfig, session: Session, ranks: Ranks) -> None:
        if config.batch_size % ranks.size:
            raise InputError(f"batch_size={config.batch_size}: allowed is a multiple of the {ranks.size} ranks")
        require(not config.loop_counts.problems_only, "loop_counts.problems_only", True, "off for text")
        share = config.batch_size // ranks.size
        if session.micro_batch is not None and session.micro_batch > share:
            raise InputError(f"micro_batch={session.micro_batch}: allowed is 1 to {share}, a rank's share of the batch")

    def load_batch(self) -> None:
        batch = self.config.batch_size
        mine = self.ranks.shard(range(self.steps_done * batch, (self.steps_done + 1) * batch))
        order = sequence_at(mine, self.sequences, self.data.fingerprint, self.config.seed)
        tokens = self.data.read("train", order, self.length)
        self.tokens.copy_(tokens.pin_memory() if self.device.type == "cuda" else tokens, non_blocking=True)

    def accumulate_gradient(self, loops: int | None) -> Tensor:
        self.refresh()
        losses = []
        micro_batches = self.tokens.split(self.micro_batch)
        for number, tokens in enumerate(micro_batches, start=1):
            # Ranks are averaged over, and each has only its share of the batch.
            weight = self.ranks.size / (self.config.batch_size * self.length)
            weights = torch.full((len(tokens),), weight, device=self.device)
            budget = functorch_config.patch(activation_memory_budget=ACTIVATION_MEMORY_BUDGET)
            with self._gradient_sync(last=number == len(micro_batches)), budget:
                loss = self.loss(tokens, weights, loops)
                loss.backward()
            losses.append(loss.detach())
            if self.copied:
                self._collect_gradients()
        return self.ranks.all_reduce(torch.stack(losses).sum()) / self.ranks.size

    def refresh(self) -> None:
        """Brings the copy that computes up to date."""
        if self.copied:
            with torch.no_grad():
                torch._foreach_copy_(list(self.computing.parameters()), list(self.model.parameters()))

    def _collect_gradients(self) -> None:
        """Adds the copy's gradients to those in float32, which accumulate over all micro-batches."""
        parameters = list(self.model.parameters())
        computed = [parameter.grad for parameter in self.computing.parameters() if parameter.grad is not None]
        assert len(computed) == len(parameters), "a parameter has no gradient"
        sums = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if sums:
            torch._foreach_add_(sums, computed)
        else:
            sums = [torch.empty_like(parameter) for parameter in parameters]
            torch._foreach_copy_(sums, computed)  # together: one by one they are copied at half the memory's speed
            for parameter, grad in zip(parameters, sums, strict=True):
                parameter.grad = grad
        for parameter in self.computing.parameters():
            parameter.grad = None

    def _gradient_sync(self, last: bool) -> AbstractContextManager[None]:
        """Has gradients travel between ranks with the last micro-batch only; those of a copy, which are taken away
        after every micro-batch, with every one."""
        if isinstance(self.loss, DistributedDataParallel) and not last and not self.copied:
            return self.loss.no_sync()
        return nullcontext()

    def validate(self) -> Evaluation:
        loss = self._mean_loss("validation", self.config.eval_examples)
        values = {"validation_loss": loss, "validation_perplexity": perplexity(loss)}
        return Evaluation(-loss, values, f"perplexity {values['validation_perplexity']:.2f}")

    def test(self) -> dict[str, Any]:
        sequences = min(self.config.test_examples, self.data.sequences("test", self.length))
        loss = self._mean_loss("test", sequences)
        return {
            "loss": loss,
            "perplexity": perplexity(loss),
            "test_sequences": sequences,
            "test_tokens": sequences * self.length,
            "train_tokens": self.steps_done * self.config.batch_size * self.length,
            "data": self.data.fingerprint,
            "flops": self.config.model.flops(self.length),
        }

    def _mean_loss(self, split: Split, sequences: int) -> float:
        self.refresh()
        ranks, batch = self.ranks, scoring_batch(self.config.model, self.length, self.device)
        share = mean_loss(
            self.loss, self.data, split, self.length, sequences, batch, self.device, ranks.rank, ranks.size
        )
        return float(ranks.all_reduce(share))

    def throughput(self, steps: int, seconds: float) -> dict[str, float]:
        """Returns throughput figures, with operations by effective depth, forward and backward; what recomputation
        repeats does not count."""
        config, device = self.config, self.device
        times = Counter(self.loops_at(step) for step in range(self.steps_done - steps, self.steps_done))
        flops = 3 * config.batch_size * sum(n * self._forward_flops(loops) for loops, n in times.items())
        values = {
            "tokens_per_second": steps * config.batch_size * self.length / seconds,
            "tflops": flops / seconds / 1e12 / self.ranks.size,
        }
        if device.type == "cuda":
            name = torch.cuda.get_device_name(device)
            peak = next((peak for card, peak in PEAK_TFLOPS.items() if card in name), None)
            values |= {"mfu": values["tflops"] / peak} if peak else {}
            values["peak_memory_gb"] = torch.cuda.max_memory_allocated(device) / 1e9
        return values

    def _forward_flops(self, loops: int | None) -> int:
        return replace(self.config.model, plan=self.model.plan_with(loops)).flops(self.length)
