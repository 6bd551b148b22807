"""Shares: what one task gets of many pieces of work, where most of them are small.

A task costs some tens of milliseconds however little it does, so of thousands of topics each
with a task of its own little else would be seen. No Spark in here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

# Few enough that all cores have something to do where there are thousands.
_MOST_PIECES: Final = 20


def shares(pieces: Iterable[T], messages: Callable[[T], int], most: int) -> list[tuple[T, ...]]:
    """The pieces in their order, as many together as have ``most`` messages at most, or one.

    Args:
      messages: how many a piece has.
    """
    found: list[tuple[T, ...]] = []
    some: list[T] = []
    total = 0
    for piece in pieces:
        total += messages(piece)
        if some and (total > most or len(some) == _MOST_PIECES):
            found.append(tuple(some))
            some, total = [], messages(piece)
        some.append(piece)
    return [*found, tuple(some)] if some else found
