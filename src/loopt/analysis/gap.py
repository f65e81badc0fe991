"""% Gap: how much of the way from the iso-param to the iso-flop baseline looping covers."""

from __future__ import annotations

import math


def percent_gap(looped: float, iso_param: float, iso_flop: float) -> float:
    """Returns 0 where looping adds nothing to the (k⊗1) baseline and 100 where it matches the (kL⊗1) one; it may lie
    outside. NaN where the baselines are equal: there is no gap to cover.

    >>> round(percent_gap(looped=34.3, iso_param=26.8, iso_flop=29.3))
    300
    """
    if iso_flop == iso_param:
        return math.nan
    return (looped - iso_param) / (iso_flop - iso_param) * 100
