"""A sketch of a looped model for a page: its layers in a box, and an arrow that leads from their end to their start."""

from __future__ import annotations

from html import escape

from loopt.plan import LoopPlan


def draw_loop_sketch(plan: LoopPlan, reads: str, writes: str) -> str:
    """Returns an SVG of a plan of one block, in the colors of the page that it stands on."""
    (block,) = plan.blocks
    layers = "one layer" if block.layers == 1 else f"{block.layers} layers, each with"
    times = f"{block.loops} times through the same weights"
    says = f"{reads} go into {layers} of attention and feed-forward, {times}, and out comes {writes}"
    return f"""<svg class="sketch" viewBox="0 0 420 140" role="img" aria-label="{escape(says)}">
<g fill="none" stroke="var(--ink)" stroke-width="1.5">
<path d="M56 95H84M336 95H366"/><rect x="90" y="52" width="240" height="78" rx="8" fill="var(--soft)"/>
<rect x="102" y="82" width="94" height="36" rx="5" fill="var(--page)"/>
<rect x="216" y="82" width="102" height="36" rx="5" fill="var(--page)"/><path d="M196 100H210"/></g>
<g fill="var(--ink)"><path d="M90 95l-9-4v8zM372 95l-9-4v8zM216 100l-8-4v8z"/></g>
<path d="M348 95V40a12 12 0 0 0-12-12H82a12 12 0 0 0-12 12V84" fill="none" stroke="var(--looped)" stroke-width="3"/>
<path d="M70 95l-6-13h12z" fill="var(--looped)"/>
<g fill="var(--ink)" font-size="13" text-anchor="middle">
<text x="210" y="18" fill="var(--looped)" font-weight="600">{escape(times)}</text>
<text x="210" y="72">{escape(layers)}</text>
<text x="149" y="105">attention</text><text x="267" y="105">feed-forward</text>
<text x="27" y="99">{escape(reads)}</text><text x="396" y="99">{escape(writes)}</text></g></svg>"""
