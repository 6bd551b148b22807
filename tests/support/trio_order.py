"""The order in which trio runs its tasks, and the waits of clients, chosen by a seed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

from trio._core import _run as scheduler


@contextlib.contextmanager
def replayed(seed: int) -> Iterator[None]:
    """Make trio order its tasks, and clients wait between attempts, by the seed."""
    before, scheduler._ALLOW_DETERMINISTIC_SCHEDULING = (
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING,
        True,
    )
    scheduler._r.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before
