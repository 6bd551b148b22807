"""Shares: groups of small pieces of work. A Spark task, or a step of a job, does one share.

A task costs some tens of milliseconds even if it does little. If each of thousands of topics had a
task of its own, these costs would dominate. This module does not use Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

# The maximum of pieces in a share. It is so small that thousands of pieces make enough shares to
# occupy all cores.
_MOST_PIECES: Final = 20


def shares(
    pieces: Iterable[T], messages: Callable[[T], int], most: int, most_pieces: int = _MOST_PIECES
) -> list[tuple[T, ...]]:
    """Group pieces, in order, into shares. A piece with too many messages is a share of its own.

    Args:
      messages: returns the number of messages of a piece.
      most: the maximum of messages in a share of several pieces.
      most_pieces: the maximum of pieces in a share.
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
