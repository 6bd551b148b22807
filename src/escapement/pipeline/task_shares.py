"""Shares: groups of small pieces of work, one group for each task or step.

A task costs some tens of milliseconds even if it does little. With one task for each of thousands
of topics, that would dominate. This module does not use Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

# The maximum of pieces in a share. It is small enough to occupy all cores with thousands of pieces.
_MOST_PIECES: Final = 20


def shares(
    pieces: Iterable[T], messages: Callable[[T], int], most: int, most_pieces: int = _MOST_PIECES
) -> list[tuple[T, ...]]:
    """Group pieces, in order, into shares of at most ``most`` messages, or of one piece.

    Args:
      messages: returns the number of messages of a piece.
    """
    found: list[tuple[T, ...]] = []
    some: list[T] = []
    total = 0
    for piece in pieces:
        total += messages(piece)
        if some and (total > most or len(some) == most_pieces):
            found.append(tuple(some))
            some, total = [], messages(piece)
        some.append(piece)
    return [*found, tuple(some)] if some else found
