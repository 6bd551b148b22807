"""Lists of values in SQL statements, such as ``id IN (?, ?)``.

Their lengths are powers of two, because each length is another statement for the database to
prepare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

# A statement has at most this many values, so that its text is short.
MAX_VALUES: Final = 512


def padded(values: Sequence[T], most: int = MAX_VALUES) -> Iterator[list[T]]:
    """Yield the values in lists whose lengths are powers of two.

    A list of at most ``most`` values is filled up by repeating its last value.
    """
    for low in range(0, len(values), most):
        some = list(values[low : low + most])
        yield some + some[-1:] * ((1 << (len(some) - 1).bit_length()) - len(some))


def in_list(values: Sequence[object]) -> str:
    """Return the SQL text ``IN (?, ?, ...)`` with a placeholder for each of these values."""
    return f"IN ({', '.join('?' * len(values))})"
