"""The order in which trio runs its tasks, chosen by a seed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from trio._core import _run as scheduler


@contextlib.contextmanager
def replayed(seed: int) -> Iterator[None]:
    """Make trio order its tasks by the seed; otherwise the order is random."""
    before, scheduler._ALLOW_DETERMINISTIC_SCHEDULING = (
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING,
        True,
    )
    scheduler._r.seed(seed)
    try:
        yield
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before
