"""Columns of numbers on the wire: little-endian, end to end, in one msgpack ``bin``.

Reading makes no copy: the array is a view of the bytes that came, and read-only.
Writing copies once, which for a column is nothing beside its payloads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def write(column: npt.NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    """The bytes of ``column``, converted to ``dtype``."""
    assert column.ndim == 1, "a column has one dimension"
    return column.astype(dtype, copy=False).tobytes()


def read(data: bytes, dtype: np.dtype[Any], max_rows: int) -> npt.NDArray[Any]:
    """The column in ``data``, as a view of it.

    Raises:
      ValueError: if it ends inside a number or has more than ``max_rows``.
    """
    rows, rest = divmod(len(data), dtype.itemsize)
    if rest:
        raise ValueError(f"{len(data)} bytes are no whole number of {dtype.itemsize}-byte rows")
    if rows > max_rows:
        raise ValueError(f"{rows} rows are more than {max_rows}")
    return np.frombuffer(data, dtype)
