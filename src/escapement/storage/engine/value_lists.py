"""Lists of values in SQL statements, in a few lengths, so that few statements are prepared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

# Values in one statement, which keeps its text short.
MAX_VALUES: Final = 512


def padded(values: Sequence[T], most: int = MAX_VALUES) -> Iterator[list[T]]:
    """Yield the values in lists, each padded with its last value to a power of two."""
    for low in range(0, len(values), most):
        some = list(values[low : low + most])
        yield some + some[-1:] * ((1 << (len(some) - 1).bit_length()) - len(some))


def in_list(values: Sequence[object]) -> str:
    """Return ``IN (?, ?, ...)`` for these values."""
    return f"IN ({', '.join('?' * len(values))})"
