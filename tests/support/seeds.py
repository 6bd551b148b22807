"""Random lives, each of which is a seed; a failure names it, so that it can be replayed."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

VARIABLE = "ESCAPEMENT_SEED"


def seeds(usual: range) -> range:
    """These, or the one that the environment names."""
    if one := os.environ.get(VARIABLE):
        return range(int(one), int(one) + 1)
    return usual


@contextmanager
def named(seed: int, done: Sequence[str]) -> Iterator[None]:
    """Says what to replay if this fails, and which steps it had done."""
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
    """Call so many of the life's methods, drawn by their weights, and ``check`` after each."""
    done: list[str] = []
    with named(seed, done):
        for _ in range(steps):
            (name,) = rng.choices(list(weighted), list(weighted.values()))
            done.append(name)
            await getattr(workload, name)()
            if check is not None:
                await check()
