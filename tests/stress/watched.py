"""Limits of the figures of a soak: none may be too high, or still grow at its end. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest figure of a kind, and how much it may grow between two thirds of a run."""

    most: float
    growth: float  # besides a tenth of the figure


LIMITS: Final = {
    "memory_mib": Limit(400, 12),  # of one broker
    "descriptors": Limit(200, 10),  # of one broker
    "disk_mib": Limit(64, 8),  # the data directory of one broker
    # Old generations are dropped in rounds, and InnoDB extends its files in steps.
    "database_mib": Limit(1_500, 96),
    # Less than 100 on an idle machine. Not measured beside much other work.
    "late_p99_ms": Limit(1_000, 1_000),
}
# A run with fewer samples is not asked whether its figures grow.
LEAST_SAMPLES: Final = 24

# Figures by broker (or "") and kind.
Sample = dict[tuple[str, str], float]


def exceeded(sample: Sample) -> Iterator[str]:
    """Yield a line for each figure that is above its limit."""
    for (whose, kind), figure in sample.items():
        if figure > LIMITS[kind].most:
            yield f"exceeded: {whose} {kind} is {figure:.0f}, more than {LIMITS[kind].most:.0f}"


def growing(samples: Sequence[Sample]) -> Iterator[str]:
    """Yield a line for each figure that still grows at the end of a run.

    Caches fill in the first third. The last third may not be higher than the second, if both have
    figures of the kind.
    """
    third = len(samples) // 3
    if len(samples) < LEAST_SAMPLES:
        return
    for whose, kind in samples[-1]:
        before, after = (
            max((one[whose, kind] for one in part if (whose, kind) in one), default=math.inf)
            for part in (samples[third : 2 * third], samples[2 * third :])
        )
        if after > 1.1 * before + LIMITS[kind].growth:
            yield f"growing: {whose} {kind} rose from {before:.0f} to {after:.0f}"
