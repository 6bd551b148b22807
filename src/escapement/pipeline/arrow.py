"""Columns of messages as Arrow record batches, mostly without copying their bytes.

Arrow's columns have nearly the layout of the columns in escapement/message.py: numbers as they are,
and strings as concatenated bytes. Arrow needs the position of each string instead of its length, so
lengths are summed up. The code does not loop over messages.

Columns are built from buffers and read as buffers. pyarrow's conversions from lists and to arrays
are not used, because they import pandas if it is installed. In a new process, that import takes
longer than many tasks. Names of types such as ``BIGINT`` are those of Spark's SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from escapement.message import Blobs, Bools, Int64s
from escapement.pipeline.columns import READ_COLUMNS
from escapement.pipeline.maps import Maps

Number = TypeVar("Number", bound=np.generic)

_INSTANT: Final = pa.timestamp("us", tz="UTC")
_STRINGS: Final = pa.map_(pa.string(), pa.string())
_TYPES: Final[Mapping[str, Any]] = {
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "SMALLINT": pa.int16(),
    "TIMESTAMP": _INSTANT,
    "BINARY": pa.binary(),
    "MAP<STRING, STRING>": _STRINGS,
}


def arrow_schema(columns: Sequence[tuple[str, bool]]) -> Any:
    """Return the Arrow schema of some columns of messages.

    Args:
      columns: names in ``READ_COLUMNS``, each with whether the column is nullable.
    """
    return pa.schema(
        [pa.field(name, _TYPES[READ_COLUMNS[name]], nullable) for name, nullable in columns]
    )


def numbers(values: npt.NDArray[Any], kind: Any, present: Bools | None) -> Any:
    """Return a column of the Arrow type ``kind``, with nulls where ``present`` is false."""
    buffers = [_validity(present), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def integers(values: Int64s, present: Bools | None = None) -> Any:
    """Return an ``INT`` column."""
    return numbers(values.astype(np.int32), pa.int32(), present)


def longs(values: Int64s) -> Any:
    """Return a ``BIGINT`` column."""
    return numbers(values, pa.int64(), None)


def shorts(values: npt.NDArray[Any]) -> Any:
    """Return a ``SMALLINT`` column."""
    return numbers(values.astype(np.int16), pa.int16(), None)


def instants(times_ms: Int64s) -> Any:
    """Return a ``TIMESTAMP`` column of Unix milliseconds."""
    return numbers(times_ms * 1000, _INSTANT, None)


def booleans(values: Bools) -> Any:
    """Return a boolean column, to filter a record batch with."""
    packed = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, packed])


def binaries(blobs: Blobs, empty_is_null: bool = False) -> Any:
    """Return a ``BINARY`` column that shares the bytes of ``blobs``.

    Args:
      empty_is_null: whether empty strings become null.
    """
    return _bytes(pa.binary(), blobs, blobs.lengths > 0 if empty_is_null else None)


def texts(values: Sequence[str]) -> Any:
    """Return a ``STRING`` column of these values. Loops over them, so use it for few values."""
    return _bytes(pa.string(), Blobs.of([value.encode() for value in values]))


def words(vocabulary: Sequence[str], codes: npt.NDArray[np.uint8]) -> Any:
    """Return a ``STRING`` column with the word of each code, an index in ``vocabulary``."""
    return texts(vocabulary).take(numbers(codes, pa.uint8(), None))


def same(text: str, count: int) -> Any:
    """Return a ``STRING`` column with the same text in each of ``count`` rows."""
    encoded = text.encode()
    lengths = np.full(count, len(encoded), np.uint32)
    return _bytes(pa.string(), Blobs(lengths, encoded * count))


def maps(found: Maps) -> Any:
    """Return a ``MAP<STRING, STRING>`` column of decoded maps."""
    offsets = pa.Array.from_buffers(
        pa.int32(), len(found.counts) + 1, [None, _offsets(found.counts)]
    )
    names = _bytes(pa.string(), found.names)
    values = _bytes(pa.string(), found.values, found.present)
    return pa.MapArray.from_arrays(offsets, names, values)


def no_maps(count: int) -> Any:
    """Return a ``MAP<STRING, STRING>`` column of ``count`` empty maps."""
    empty = Blobs.empty(0)
    return maps(Maps(np.zeros(count, np.int64), empty, empty))


def no_binaries(count: int) -> Any:
    """Return a ``BINARY`` column of ``count`` nulls."""
    return pa.nulls(count, pa.binary())


def values_of(column: Any, kind: type[Number]) -> npt.NDArray[Number]:
    """Return the numbers of an Arrow column as an array that shares the column's bytes.

    The array has an undefined number at the position of each null.

    Args:
      kind: the numpy type of the numbers.
    """
    if not len(column):
        return np.zeros(0, kind)
    size_bytes = np.dtype(kind).itemsize
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * size_bytes)


def present(column: Any) -> Bools:
    """Return a mask of the values of an Arrow column that are not null; bool[n]."""
    return values_of(column.is_valid().cast(pa.uint8()), np.bool_)


def record_batch(schema: Any, columns: Mapping[str, Any]) -> Any:
    """Return a record batch of the columns that the schema names, out of ``columns``."""
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _bytes(kind: Any, blobs: Blobs, present: Bools | None = None) -> Any:
    """Return a column of the type ``kind``, text or binary, that shares the bytes of ``blobs``."""
    assert len(blobs.data) < 1 << 31, "a batch exceeds the range of Arrow's 32-bit offsets"
    buffers = [_validity(present), _offsets(blobs.lengths), pa.py_buffer(blobs.data)]
    return pa.Array.from_buffers(kind, len(blobs), buffers)


def _offsets(lengths: npt.NDArray[Any]) -> Any:
    """Return a buffer with the offset of each string, and the end of the last, as int32."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, dtype=np.int32, out=offsets[1:])
    return pa.py_buffer(offsets)


def _validity(present: Bools | None) -> Any:
    if present is None or present.all():
        return None
    return pa.py_buffer(np.packbits(present, bitorder="little"))
