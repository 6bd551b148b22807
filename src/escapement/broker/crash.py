"""One error out of a group: what made a tree of tasks fall.

A nursery raises a group, because several tasks may fail at once. Whoever runs a broker
wants the error that explains it: the first that is ours, or else the first there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from escapement.errors import EscapementError


@contextmanager
def one_error() -> Iterator[None]:
    """Raise, in the place of a group of errors, the one that explains it."""
    try:
        yield
    except BaseExceptionGroup as group:
        leaves = list(_leaves(group))
        ours = [leaf for leaf in leaves if isinstance(leaf, EscapementError)]
        real = [leaf for leaf in leaves if not isinstance(leaf, trio.Cancelled)]
        raise (ours or real or leaves)[0] from None


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
