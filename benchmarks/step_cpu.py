"""What training costs on a CPU: a step beside Transformers', and the start-up of compiling.

    python benchmarks/step_cpu.py           both parts, about six minutes on an idle machine
    python benchmarks/step_cpu.py --help    what can be changed

steps    A training step (forward, cross-entropy, backward, clip, AdamW) of our (12⊗1) and of Transformers' model of
         the same architecture and shape. Both hold the same weights and must give the same logits, so it is the same
         function that is timed. The two take turns, so whatever else the machine does hits both; the ratio is the
         median of the turns' ratios.
compile  From asking for compilation to the end of the first forward and backward pass, each plan in a process of its
         own with empty caches: seconds of CPU, which other programs disturb less, and seconds on the clock. The trainer
         compiles layers, not the model: one compilation serves every layer and every loop, where compiling the whole
         model unrolls the loops and pays for each.

Nothing is asserted about time: machines differ, and other programs run on them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.runs import AdamWConfig
from loopt.training.optim import build_optimizers
from loopt.training.update import update

VOCABULARY, LENGTH = 1000, 256
SHAPES = ((128, 8, 512), (256, 8, 1024))  # d_model, heads, d_ff; the first is the paper's for p-hop
COMPILED = (("layers", "1x1"), ("layers", "1x12"), ("layers", "12x1"), ("model", "1x12"))


def main() -> None:
    options = read_options()
    if options.child:
        print(json.dumps(first_pass(*options.child, options)))
        return
    console = Console()
    console.print(machine(options.threads), highlight=False)
    if options.part != "compile":
        console.print(steps_table(options))
    if options.part != "steps":
        console.print(compile_table(options))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("all", "steps", "compile"), default="all", help="what to measure")
    parser.add_argument("--threads", type=int, default=1, help="of torch; 1, the default, is steady on a busy machine")
    parser.add_argument("--batch", type=int, default=4, help=f"examples of {LENGTH} tokens in a step (default 4)")
    parser.add_argument("--steps", type=int, default=15, help="timed steps of each model (default 15)")
    parser.add_argument("--rounds", type=int, default=2, help="compilations of each kind; the fastest counts")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def machine(threads: int) -> str:
    import transformers

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    name = next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.processor())
    return (
        f"{name or platform.machine()}, {os.cpu_count()} cores, {threads} thread(s) used, float32; "
        f"torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}"
    )


# Steps


@dataclass(frozen=True)
class Pair:
    """A model of ours, Transformers' of the same architecture, and how its parameters are made of ours."""

    config: ModelConfig
    peer: Callable[[ModelConfig], nn.Module]
    peer_weights: Callable[[LoopedTransformer], dict[str, Tensor]]


class Peer(nn.Module):
    """Transformers' model, called as ours is: ids in, logits out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


def llama(config: ModelConfig) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=config.plan.depth,
            hidden_size=config.d_model,
            num_attention_heads=config.n_heads,
            num_key_value_heads=config.n_heads,
            intermediate_size=config.d_ff,
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_len,
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
            attn_implementation="sdpa",
        )
    )


def llama_weights(ours: LoopedTransformer) -> dict[str, Tensor]:
    weights = {
        "model.embed_tokens.weight": ours.token_embedding.weight,
        "model.norm.weight": ours.final_norm.weight,
        "lm_head.weight": ours.readout_projection.weight,
    }
    for i, layer in enumerate(ours.loop.layers):
        q, k, v = layer.attention.qkv.weight.chunk(3)
        gate, values = layer.feed_forward.gate.weight, layer.feed_forward.up.weight
        weights |= {
            f"model.layers.{i}.input_layernorm.weight": layer.attention_norm.weight,
            f"model.layers.{i}.self_attn.q_proj.weight": q,
            f"model.layers.{i}.self_attn.k_proj.weight": k,
            f"model.layers.{i}.self_attn.v_proj.weight": v,
            f"model.layers.{i}.self_attn.o_proj.weight": layer.attention.output.weight,
            f"model.layers.{i}.post_attention_layernorm.weight": layer.feed_forward_norm.weight,
            f"model.layers.{i}.mlp.gate_proj.weight": gate,
            f"model.layers.{i}.mlp.up_proj.weight": values,
            f"model.layers.{i}.mlp.down_proj.weight": layer.feed_forward.down.weight,
        }
    return weights


def gpt2(config: ModelConfig) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=config.plan.depth,
            n_embd=config.d_model,
            n_head=config.n_heads,
            n_inner=config.d_ff,
            vocab_size=config.vocab_size,
            n_positions=config.max_len,
            activation_function="gelu",  # the exact one, as ours
            layer_norm_epsilon=1e-6,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=None,  # GPT-2's own lies outside this vocabulary
            eos_token_id=None,
            attn_implementation="sdpa",
        )
    )


def gpt2_weights(ours: LoopedTransformer) -> dict[str, Tensor]:
    weights = {
        "transformer.wte.weight": ours.token_embedding.weight,
        "lm_head.weight": ours.token_embedding.weight,
        "transformer.wpe.weight": ours.position_embedding.weight,
        "transformer.ln_f.weight": ours.final_norm.weight,
        "transformer.ln_f.bias": ours.final_norm.bias,
    }
    for i, layer in enumerate(ours.loop.layers):
        for name, module in (
            ("ln_1", layer.attention_norm),
            ("attn.c_attn", layer.attention.qkv),
            ("attn.c_proj", layer.attention.output),
            ("ln_2", layer.feed_forward_norm),
            ("mlp.c_fc", layer.feed_forward.up),
            ("mlp.c_proj", layer.feed_forward.down),
        ):
            # GPT-2 keeps its matrices as [inputs, outputs]
            weights[f"transformer.h.{i}.{name}.weight"] = module.weight.T if module.weight.ndim == 2 else module.weight
            weights[f"transformer.h.{i}.{name}.bias"] = module.bias
    return weights


def pairs(d_model: int, n_heads: int, d_ff: int) -> dict[str, Pair]:
    shape = {"d_model": d_model, "n_heads": n_heads, "d_ff": d_ff, "vocab_size": VOCABULARY, "max_len": LENGTH}
    plan = LoopPlan.parse("12x1")
    return {
        "Llama": Pair(ModelConfig(plan, **shape, feed_forward="swiglu"), llama, llama_weights),
        "GPT-2": Pair(
            ModelConfig(plan, **shape, positions="learned", norm="layer", biases="all", tied_readout=True),
            gpt2,
            gpt2_weights,
        ),
    }


def steps_table(options: argparse.Namespace) -> Table:
    torch.set_num_threads(options.threads)
    table = Table(
        title=f"A training step of (12⊗1), batch {options.batch} × {LENGTH} tokens: median of {options.steps}"
    )
    table.add_column("peer")
    for name in ("d_model", "parameters", "peer's", "ours, ms", "peer, ms", "ours/peer"):
        table.add_column(name, justify="right")
    for shape in SHAPES:
        for name, pair in pairs(*shape).items():
            torch.manual_seed(0)
            ours, peer = LoopedTransformer(pair.config), pair.peer(pair.config)
            peer.load_state_dict(pair.peer_weights(ours))
            counts = [sum(p.numel() for p in model.parameters()) for model in (ours, peer)]
            assert counts[0] == counts[1] == pair.config.parameters(), f"{name}: not the same shape: {counts}"
            ids = torch.randint(VOCABULARY, (options.batch, LENGTH))
            with torch.no_grad():
                torch.testing.assert_close(Peer(peer)(ids), ours(ids), rtol=1e-4, atol=1e-4)
            times = step_times(ours, Peer(peer), options)
            table.add_row(
                name,
                str(shape[0]),
                *(f"{count:,}" for count in counts),
                *(f"{statistics.median(taken):.1f}" for taken in zip(*times, strict=True)),
                f"{statistics.median(mine / its for mine, its in times):.3f}",
            )
    return table


def step_times(ours: nn.Module, peer: nn.Module, options: argparse.Namespace) -> list[tuple[float, float]]:
    """Milliseconds of our step and the peer's, turn by turn; who goes first alternates."""
    optimizers = {model: build_optimizers(AdamWConfig(), model) for model in (ours, peer)}
    times: list[tuple[float, float]] = []
    for turn in range(2 + options.steps):
        tokens, targets = torch.randint(VOCABULARY, (2, options.batch, LENGTH)).unbind()
        taken = {}
        for model in (ours, peer) if turn % 2 else (peer, ours):
            began = time.perf_counter()
            model.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            loss.backward()
            update(model.parameters(), optimizers[model], loss.detach(), torch.tensor(1e-4), clip_norm=1.0)
            taken[model] = 1000 * (time.perf_counter() - began)
        times.append((taken[ours], taken[peer]))
    return times[2:]  # the first two warm up


# Compiling


def compile_table(options: argparse.Namespace) -> Table:
    d_model, n_heads, d_ff = SHAPES[0]
    table = Table(
        title=f"Start-up of compiling, d_model {d_model}, {n_heads} heads, d_ff {d_ff}: fastest of {options.rounds}"
    )
    table.add_column("plan")
    for name in ("layers run", "compiled", "graphs", "CPU, s", "clock, s"):
        table.add_column(name, justify="right")
    rounds = [[in_fresh_process(what, plan, options) for what, plan in COMPILED] for _ in range(options.rounds)]
    for (what, plan), measured in zip(COMPILED, zip(*rounds, strict=True), strict=True):
        graphs, cpu, clock = min(measured, key=lambda one: one[1])
        what = "each layer" if what == "layers" else "whole model"
        table.add_row(plan, str(LoopPlan.parse(plan).depth), what, str(graphs), f"{cpu:.1f}", f"{clock:.1f}")
    return table


def in_fresh_process(what: str, plan: str, options: argparse.Namespace) -> tuple[int, float, float]:
    with tempfile.TemporaryDirectory() as empty:
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": empty,
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no helper processes, whose CPU time would go uncounted
        }
        command = [sys.executable, __file__, f"--threads={options.threads}", f"--batch={options.batch}"]
        done = subprocess.run(
            [*command, "--child", what, plan], env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    graphs, cpu, clock = json.loads(done.stdout.splitlines()[-1])
    return graphs, cpu, clock


def first_pass(what: str, plan: str, options: argparse.Namespace) -> tuple[int, float, float]:
    """Compile, run forward and backward once; the number of graphs compiled, and the CPU's and the clock's seconds."""
    from torch._dynamo.utils import counters

    warnings.filterwarnings("ignore", "dynamo_pgo")  # says that the caches are off
    torch.set_num_threads(options.threads)
    shape = pairs(*SHAPES[0])["Llama"].config
    torch.manual_seed(0)
    model = LoopedTransformer(ModelConfig(**{**vars(shape), "plan": LoopPlan.parse(plan)}))
    ids = torch.randint(VOCABULARY, (options.batch, LENGTH))
    model(ids).sum().backward()  # whatever else is slow the first time
    cpu, clock = cpu_seconds(), time.perf_counter()
    if what == "layers":
        for layer in model.loop.layers:  # as the trainer does
            layer.compile()
    else:
        model.compile()
    model(ids).sum().backward()
    return counters["stats"]["unique_graphs"], cpu_seconds() - cpu, time.perf_counter() - clock


def cpu_seconds() -> float:
    """Of this process and of the C++ compilers it ran."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    main()
