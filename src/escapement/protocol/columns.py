"""Columns of numbers on the wire: little-endian, end to end, in one msgpack ``bin``.

Reading makes no copy: the array is a read-only view of the received bytes. Writing makes
one copy, which is cheap compared with the payloads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def write(column: npt.NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    """Return the bytes of ``column``, converted to ``dtype``."""
    assert column.ndim == 1, "a column has one dimension"
    return column.astype(dtype, copy=False).tobytes()


def read(data: bytes, dtype: np.dtype[Any], max_rows: int) -> npt.NDArray[Any]:
    """Return the column in ``data``, as a view.

    Raises:
      ValueError: if ``data`` ends inside a number or has more than ``max_rows`` rows.
    """
    rows, rest = divmod(len(data), dtype.itemsize)
    if rest:
        raise ValueError(f"{len(data)} bytes are not a multiple of {dtype.itemsize}-byte rows")
    if rows > max_rows:
        raise ValueError(f"{rows} rows are more than the maximum of {max_rows}")
    return np.frombuffer(data, dtype)
