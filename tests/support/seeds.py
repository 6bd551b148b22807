"""Seeds of random workloads. A failure prints its seed, which replays it."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

VARIABLE = "ESCAPEMENT_SEED"


def seeds(usual: Sequence[int]) -> Sequence[int]:
    """Return these seeds, or the one that the environment names."""
    if one := os.environ.get(VARIABLE):
        return [int(one)]
    return usual


@contextmanager
def named(seed: int, done: Sequence[str]) -> Iterator[None]:
    """Print the seed and the steps if the ``with`` block fails."""
    try:
        yield
    except BaseException:
        print(f"replay this with {VARIABLE}={seed}; it did {' '.join(done)}")
        raise


async def play(
    seed: int,
    rng: random.Random,
    workload: Any,
    weighted: Mapping[str, int],
    steps: int,
    check: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Call random methods of the workload by their weights, and ``check`` after each."""
    done: list[str] = []
    with named(seed, done):
        for _ in range(steps):
            (name,) = rng.choices(list(weighted), list(weighted.values()))
            done.append(name)
            await getattr(workload, name)()
            if check is not None:
                await check()
