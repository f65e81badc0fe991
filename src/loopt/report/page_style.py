"""How the demo's page looks, by day and by night."""

from __future__ import annotations

from loopt.report.figures import BLUE, FAINT, FOR_TEXT, INK, MUTED, PAPER, VERMILION

VARIABLES = {
    PAPER: "page",
    INK: "ink",
    MUTED: "muted",
    FAINT: "faint",
    BLUE: "looped",
    VERMILION: "deep",
    FOR_TEXT[VERMILION]: "deep",
}
"""The colors of a figure, and what the page calls them."""

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1f2328; --muted: #5b6168; --faint: #c9ced4; --soft: #f3f4f6;
  --looped: #0072b2; --deep: #b34e00; --tint: #e5f1f8; --right: #d5eee2; --wrong: #fbe0d5;
  --yes: #00694d; --no: #a33c00 }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --ink: #e6e8ea; --muted: #a3abb3; --faint: #3f464d;
  --soft: #1f2429; --looped: #66bdf0; --deep: #f5935a; --tint: #16303f; --right: #123d2e; --wrong: #4b2416;
  --yes: #5fd6ac; --no: #ffab85 } }
* { box-sizing: border-box }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 46rem; margin: 2.5rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--page) }
h1 { font-size: 1.6rem; line-height: 1.25 } h2 { font-size: 1.15rem; margin-top: 2.2rem }
a { color: var(--looped) } code { display: block; overflow-x: auto; white-space: nowrap; font-size: .9em }
figure { margin: 1.5rem 0 } figcaption, small, .note { color: var(--muted) } figcaption, .note { font-size: .9rem }
svg { display: block; width: 100%; height: auto; max-width: 38rem } .sketch { max-width: 30rem; margin: 0 auto }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums } .wide { overflow-x: auto }
.figures td, .figures th { padding: .35rem .8rem; text-align: right; border-bottom: 1px solid var(--faint) }
.figures th:first-child { text-align: left } tr + tr th { font-weight: inherit }
.figures .looped, .figures .looped th { font-weight: 600; background: var(--tint) }
th:first-child { position: sticky; left: 0; z-index: 2; background: var(--page); white-space: nowrap }
pre { background: var(--soft); padding: .8rem; overflow-x: auto; font-size: .72rem; line-height: 1.35;
  border-radius: 6px }
.loops td, .loops th { padding: .2rem .25rem; text-align: center; font: .82rem ui-monospace, monospace }
.loops th { text-align: right; padding-right: .6rem }
.loops td { position: relative; min-width: 2rem; white-space: nowrap }
.loops td:last-child { position: sticky; right: 0; z-index: 1; min-width: 2.4rem; background: var(--page);
  border: solid var(--looped); border-width: 0 2px }
.loops tr:first-child td:last-child { border-top-width: 2px }
.loops tr:last-child td:last-child { border-bottom-width: 2px }
.loops .right, .loops .right:last-child { background: var(--right) }
.loops .wrong, .loops .wrong:last-child { background: var(--wrong) }
.mark { font-weight: 700; margin-left: .15em; color: var(--yes) } .wrong .mark { color: var(--no) }
.loops td:is(:hover, :focus) { z-index: 3; outline: 2px solid var(--muted); outline-offset: -2px }
.loops td[data-sure]:is(:hover, :focus)::after { content: attr(data-sure); position: absolute; bottom: 100%; left: 50%;
  transform: translateX(-50%); padding: .1rem .4rem; border-radius: 4px; white-space: nowrap; pointer-events: none;
  color: var(--page); background: var(--ink) }
.loops td[data-sure]:last-child::after { left: auto !important; right: 0; transform: none !important }
@media (max-width: 40rem) { .figures { font-size: .8rem } .figures td, .figures th { padding: .3rem .32rem }
  .loops small { display: block; font-size: .7rem } .loops th { padding-right: .4rem } body { margin: 1.2rem auto } }
"""


def colored_by_page(svg: str) -> str:
    """Returns a figure as part of a page, whose colors follow the page's."""
    svg = svg[svg.index("<svg") :]
    for color, name in VARIABLES.items():
        svg = svg.replace(color, f"var(--{name})")
    return svg
