"""Draws a plan for the terminal, with its parameters and FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loopt.model import ModelConfig
from loopt.plan import Block, LoopPlan

WIDEST = 36  # boxes in a line, which fits a terminal of 80 columns; the rest is only counted


def draw_plan(config: ModelConfig) -> RenderableType:
    """Returns a drawing of the blocks in the order they run, with the plan's size beside its baselines'."""
    plan = config.plan
    own = (
        "1 layer with weights of its own"
        if plan.distinct_layers == 1
        else f"{plan.distinct_layers} layers with weights of their own"
    )
    heading = Text(f"{plan}: {own}, {plan.depth} deep", style="bold")
    return Group(heading, Text(), _blocks(plan), Text(), _counts(config))


def _blocks(plan: LoopPlan) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    first = 0
    for index, block in enumerate(plan.blocks):
        last = first + block.layers - 1
        layers = f"layer {first}" if first == last else f"layers {first}-{last}"
        note = f"×{block.loops}" + ("  loopable" if index == plan.loopable else "")
        grid.add_row(layers, Text(_boxes(block), style="cyan" if block.loops > 1 else ""), note)
        first += block.layers
    return grid


def _boxes(block: Block) -> str:
    """Returns a box for each layer, in a group for each loop, as far as they fit.

    >>> _boxes(Block(4, 3)), _boxes(Block(12, 5)), _boxes(Block(100, 2))
    ('▢▢▢▢ ▢▢▢▢ ▢▢▢▢', '▢▢▢▢▢▢▢▢▢▢▢▢ ▢▢▢▢▢▢▢▢▢▢▢▢ …', '▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢…')
    """
    if block.layers > WIDEST:
        return "▢" * WIDEST + "…"
    shown = min(block.loops, WIDEST // (block.layers + 1) or 1)
    return " ".join(["▢" * block.layers] * shown + ["…"] * (shown < block.loops))


def _counts(config: ModelConfig) -> RenderableType:
    plan = config.plan
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in ("plan", "parameters", f"forward FLOPs, {config.max_len} tokens"):
        table.add_column(name, justify="right")
    rows = {"this": plan, "iso-param baseline": plan.iso_param, "iso-flop baseline": plan.iso_flop}
    for name, one in rows.items():
        sized = replace(config, plan=one)
        table.add_row(name, str(one), human(sized.parameters()), human(sized.flops(config.max_len)))
    return table


def human(count: float) -> str:
    """Returns a count with three digits and a unit.

    >>> human(999), human(49_920), human(999_999), human(1_532_000_000)
    ('999', '49.9k', '1M', '1.53G')
    """
    count = float(f"{count:.3g}")
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.4g}{letter}"
    return f"{count:g}"


def sparkline(values: Sequence[float], low: float, high: float, width: int = 24) -> str:
    """Returns a curve as one line of blocks, from the lowest at ``low`` to the highest at ``high``.

    >>> sparkline([0, 1, 2, 3], 0, 3)
    '▁▃▆█'
    """
    blocks = "▁▂▃▄▅▆▇█"
    last = len(values) - 1
    shown = [values[round(i * last / (width - 1))] for i in range(width)] if len(values) > width else values
    return "".join(blocks[round((value - low) / ((high - low) or 1) * (len(blocks) - 1))] for value in shown)
