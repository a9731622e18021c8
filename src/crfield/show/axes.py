"""Round numbers for the axes of charts."""

from __future__ import annotations

import math
from collections.abc import Sequence


def round_ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Round numbers covering [low, high] in at most about `most` steps of 1, 2 or 5."""
    if high - low <= max(1e-12 * max(abs(low), abs(high)), 1e-290):
        margin = 0.05 * abs(low) if abs(low) > 1e-280 else 1.0
        low, high = low - margin, high + margin
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if whole:
        last = math.floor(high / step)
    return [index * step for index in range(first, last + 1)]


def tick_names(ticks: Sequence[float]) -> list[str]:
    """The ticks in as few digits as tell them apart."""
    step, largest = ticks[1] - ticks[0], max(abs(tick) for tick in ticks)
    if largest >= 1e9 or step < 1e-6:
        digits = min(math.ceil(math.log10(largest / step) + 1e-9), 8)
        return [f"{tick:.{digits}e}" for tick in ticks]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{tick:,.{decimals}f}" for tick in ticks]
