"""Training a language model on prepared text.

Which sequences a step has depends on data, seed and step alone. Each rank reads its share of them, some at a time.
"""

from __future__ import annotations

import copy
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch.nn.parallel import DistributedDataParallel

from loopt.errors import InputError
from loopt.evaluation.perplexity import mean_loss, perplexity
from loopt.kernels import speed_up
from loopt.model import LoopedTransformer
from loopt.runs import TrainConfig
from loopt.text.order import sequence_at
from loopt.text.token_data import TokenData
from loopt.training.chunked_loss import chunked_loss
from loopt.training.optim import build_optimizers
from loopt.training.parallel import Parallel, Ranks, computes_in_bfloat16, spread
from loopt.training.step import Step
from loopt.training.work import Evaluation

PEAK_TFLOPS = {"H100": 989.0, "H200": 989.0, "B200": 2250.0, "A100": 312.0, "L40S": 362.0, "RTX 4090": 165.0}
"""Dense bfloat16 matrix products, by the makers' data sheets."""

KEPT = 0.7
"""Of what a compiled layer would keep for the backward pass, the share that it may: that leaves out norms and products
of activations, which cost next to nothing to compute again, and no matrix product."""


class LanguageLoss(nn.Module):
    """The model with its loss, as the one module that runs forward: what is spread over ranks."""

    def __init__(self, model: LoopedTransformer, compiled: bool) -> None:
        super().__init__()
        self.model = model
        self.compiled = compiled

    def forward(self, tokens: Tensor, weights: Tensor, loops: int | None = None) -> Tensor:
        """[B, T + 1] tokens, [B] weights -> the loss of predicting each token from those before, summed with them."""
        model, targets = self.model, tokens[:, 1:]
        x = model.final_norm(model.iterate(model.embed(tokens[:, :-1]), loops))  # [B, T, D]
        each = weights[:, None].expand(targets.shape).flatten()  # [B * T]
        return chunked_loss(x.flatten(0, 1), model.readout_weight, targets.flatten(), each, compiled=self.compiled)


class TextStep(Step):
    """Trains on the next sequences. On CUDA a copy of the weights in bfloat16 computes, made anew each step; what is
    updated stays in float32. A sharded model makes that copy itself, as it gathers its weights."""

    def __init__(
        self,
        config: TrainConfig,
        model: LoopedTransformer,
        data: TokenData,
        done: int,
        compiled: bool,
        ranks: Ranks,
        parallel: Parallel,
        micro_batch: int | None,
    ) -> None:
        cuda, sharded = model.token_embedding.weight.is_cuda, ranks.together and parallel == "fsdp"
        self.copied = computes_in_bfloat16(model) and not sharded
        self.computing = _in_bfloat16(model) if self.copied else model
        if compiled:
            speed_up(self.computing)
        self.loss = spread(LanguageLoss(self.computing, compiled), self.computing, ranks, parallel)
        share = config.batch_size // ranks.size
        self.micro_batch = micro_batch or share
        # A small model's step is over before the host has launched it; a large one's is made of parts, and is not.
        captured = cuda and not ranks.together and self.micro_batch == share and not model.loop.recompute
        optimizers = build_optimizers(model, config.optim, compiled)  # of the weights once they are spread
        super().__init__(config, model, optimizers, done, compiled, captured)
        self.data, self.ranks = data, ranks
        self.length = config.model.max_len
        self.sequences = data.sequences("train", self.length)
        self.tokens = torch.zeros(share, self.length + 1, dtype=torch.int64, device=self.device)

    def feed(self) -> None:
        """This rank's sequences of the step."""
        batch = self.config.batch_size
        mine = self.ranks.share(range(self.next * batch, (self.next + 1) * batch))
        order = sequence_at(mine, self.sequences, self.data.fingerprint, self.config.seed)
        tokens = self.data.read("train", order, self.length)
        self.tokens.copy_(tokens.pin_memory() if self.device.type == "cuda" else tokens, non_blocking=True)

    def gradient(self, loops: int | None) -> Tensor:
        self.refresh()
        losses = []
        parts = self.tokens.split(self.micro_batch)
        for part, tokens in enumerate(parts):
            # Ranks are averaged over, and each has only its share of the batch.
            weight = self.ranks.size / (self.config.batch_size * self.length)
            weights = torch.full((len(tokens),), weight, device=self.device)
            with self._exchanging(part == len(parts) - 1), functorch_config.patch(activation_memory_budget=KEPT):
                loss = self.loss(tokens, weights, loops)
                loss.backward()
            losses.append(loss.detach())
            if self.copied:
                self._collect_gradients()
        return self.ranks.add_up(torch.stack(losses).sum()) / self.ranks.size

    def refresh(self) -> None:
        """Bring the copy that computes up to date."""
        if self.copied:
            with torch.no_grad():
                torch._foreach_copy_(list(self.computing.parameters()), list(self.model.parameters()))

    def _collect_gradients(self) -> None:
        """Add the copy's gradients to those in float32, which sum over all parts of the batch."""
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

    def _exchanging(self, last: bool) -> AbstractContextManager[None]:
        """Gradients travel between ranks with the last part of a batch only; those of a copy, which are taken away
        after every part, with every part."""
        if isinstance(self.loss, DistributedDataParallel) and not last and not self.copied:
            return self.loss.no_sync()
        return nullcontext()


class TextWork:
    """Text, of which some was held out."""

    def __init__(self, step: TextStep) -> None:
        self.step, self.config, self.ranks, self.data = step, step.config, step.ranks, step.data

    def validate(self) -> Evaluation:
        loss = self._mean_loss(self.config.eval_examples)
        values = {"validation_loss": loss, "validation_perplexity": perplexity(loss)}
        return Evaluation(-loss, values, f"perplexity {values['validation_perplexity']:.2f}")

    def test(self) -> dict[str, Any]:
        """On validation text, more of it than during training; nothing was chosen by it but the checkpoint."""
        sequences = min(self.config.test_examples, self.data.sequences("validation", self.step.length))
        loss = self._mean_loss(sequences)
        return {
            "loss": loss,
            "perplexity": perplexity(loss),
            "test_sequences": sequences,
            "test_tokens": sequences * self.step.length,
            "train_tokens": self.step.next * self.config.batch_size * self.step.length,
            "data": self.data.fingerprint,
            "flops": self.config.model.flops(self.step.length),
        }

    def _mean_loss(self, sequences: int) -> float:
        self.step.refresh()
        ranks, step = self.ranks, self.step
        batch = min(step.micro_batch, max(1, sequences // ranks.size))
        part = mean_loss(
            step.loss, self.data, "validation", step.length, sequences, batch, step.device, ranks.rank, ranks.size
        )
        return float(ranks.add_up(part))

    def speed(self, steps: int, seconds: float) -> dict[str, float]:
        """Operations by effective depth, forward and backward; what recomputation repeats does not count."""
        config, device = self.config, self.step.device
        times = Counter(self.step.loops_at(step) for step in range(self.step.next - steps, self.step.next))
        flops = 3 * config.batch_size * sum(n * self._forward_flops(loops) for loops, n in times.items())
        values = {
            "tokens_per_second": steps * config.batch_size * self.step.length / seconds,
            "tflops": flops / seconds / 1e12 / self.ranks.size,
        }
        if device.type == "cuda":
            name = torch.cuda.get_device_name(device)
            peak = next((peak for card, peak in PEAK_TFLOPS.items() if card in name), None)
            values |= {"mfu": values["tflops"] / peak} if peak else {}
            values["peak_memory_gb"] = torch.cuda.max_memory_allocated(device) / 1e9
        return values

    def _forward_flops(self, loops: int | None) -> int:
        model = self.config.model
        plan = model.plan if loops is None else model.plan.with_loops(loops)
        return replace(model, plan=plan).flops(self.step.length)


def open_data(config: TrainConfig) -> TokenData:
    if config.data is None:
        raise InputError("data=None: which text? Allowed is a directory that `loopt data prepare` made")
    data = TokenData.open(config.data)
    if config.data_fingerprint and data.fingerprint != config.data_fingerprint:
        raise InputError(
            f"data {config.data}: its fingerprint is {data.fingerprint}, the run was started on "
            f"{config.data_fingerprint}; train on other text in another run"
        )
    return data


def check_shares(config: TrainConfig, ranks: Ranks, micro_batch: int | None) -> None:
    if config.batch_size % ranks.size:
        raise InputError(f"batch_size={config.batch_size}: allowed is a multiple of the {ranks.size} ranks")
    share = config.batch_size // ranks.size
    if micro_batch is not None and micro_batch > share:
        raise InputError(f"micro_batch={micro_batch}: allowed is 1 to {share}, a rank's share")


def _in_bfloat16(model: LoopedTransformer) -> LoopedTransformer:
    """A copy whose parameters are in bfloat16; angles of rotary positions stay exact."""
    computing = copy.deepcopy(model)
    for parameter in computing.parameters():
        parameter.data = parameter.data.bfloat16()
    return computing
