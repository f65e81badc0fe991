"""What tests of figures and pages measure: contrast, colors as a deuteranope sees them, and the text of an SVG."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

# Machado, Oliveira and Fernandes (2009), deuteranopia, on linear RGB
DEUTERANOPE = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
TO_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
WHITE = (0.95047, 1.0, 1.08883)

Triple = tuple[float, float, float]


def texts_of(svg: Path) -> list[str]:
    """Returns every text of a figure."""
    return [unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text(encoding="utf-8"))]


def contrast(one: str, other: str) -> float:
    """Returns the contrast of two colors by WCAG, from 1 to 21."""
    low, high = sorted(_times(TO_XYZ, _linear(color))[1] for color in (one, other))
    return (high + 0.05) / (low + 0.05)


def seen_apart(one: str, other: str) -> float:
    """Returns how far apart two colors are to a deuteranope, as a distance in CIELAB; 2 is just seen."""
    first, second = (_lab(_times(DEUTERANOPE, _linear(color))) for color in (one, other))
    return sum((a - b) ** 2 for a, b in zip(first, second, strict=True)) ** 0.5


def _linear(color: str) -> Triple:
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return _gamma(red), _gamma(green), _gamma(blue)


def _gamma(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def _times(matrix: tuple[Triple, Triple, Triple], color: Triple) -> Triple:
    x, y, z = (sum(a * b for a, b in zip(row, color, strict=True)) for row in matrix)
    return x, y, z


def _lab(linear: Triple) -> Triple:
    parts = [part / white for part, white in zip(_times(TO_XYZ, linear), WHITE, strict=True)]
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in parts)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)
