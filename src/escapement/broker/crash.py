"""Reduces an exception group to the one error that explains why a tree of tasks failed.

A nursery raises a group, because several tasks may fail at once. The caller of a broker needs the
error that explains the failure: the first ``EscapementError``, or else the first error that is not
a cancellation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from escapement.errors import EscapementError


@contextmanager
def one_error() -> Iterator[None]:
    """Replace an exception group raised in a ``with`` block by the error that explains it."""
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
