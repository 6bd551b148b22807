"""Groups of small pieces of work. A Spark task, or a step of a job, does one group.

A task costs some tens of milliseconds even if it does little. If each of thousands of topics had a
task of its own, these costs would dominate. This module does not use Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

# The maximum of pieces in a group. It is so small that thousands of pieces make enough groups to
# occupy all cores.
_MOST_PIECES: Final = 20


def group_pieces(
    pieces: Iterable[T], messages: Callable[[T], int], most: int, most_pieces: int = _MOST_PIECES
) -> list[tuple[T, ...]]:
    """Group pieces, in order. A piece with too many messages is a group of its own.

    Args:
      messages: returns the number of messages of a piece.
      most: the maximum of messages in a group of several pieces.
      most_pieces: the maximum of pieces in a group.
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
