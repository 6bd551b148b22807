"""Digests of archived content, which prove that the messages written are the messages read.

The digest of a file hashes each column with SHA-256: the bytes of numbers, and the lengths and
concatenated bytes of strings. Columns are hashed as a whole, without a loop over messages. The
digest does not depend on how messages are cut into batches. It changes with the order of messages
and with any exchanged value. Digests of files can be added in any order, so the order in which
tasks finish does not matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import numpy as np
import pyarrow as pa

from escapement.message import Buffer
from escapement.pipeline.arrow import present, values_of

_NUMBERS: Final[dict[int, type[np.signedinteger[Any]]]] = {
    16: np.int16,
    32: np.int32,
    64: np.int64,
}
_MASK: Final = (1 << 64) - 1
# The first bytes of a file's SHA-256 are used: a signed integer for ``Digest.mixed``, and then an
# unsigned one for ``Digest.total``.
_MIXED_BYTES: Final = 8
_ADDED_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest of some files: a number of messages, and two sums over the files' hashes.

    All three are 0 without files.
    """

    messages: int = 0
    mixed: int = 0  # the exclusive or of 64 bits of each hash; signed, as Spark's BIGINT
    total: int = 0  # the sum of 32 bits of each hash

    def __add__(self, other: Digest) -> Digest:
        return Digest(
            self.messages + other.messages, self.mixed ^ other.mixed, self.total + other.total
        )

    @property
    def content(self) -> str:
        """``mixed`` and ``total`` as 32 hexadecimal digits."""
        return f"{self.mixed & _MASK:016x}{self.total & _MASK:016x}"


class Content:
    """Computes the digest of one file while its messages pass in batches."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._messages = 0
        self._sums: dict[str, Any] = defaultdict(sha256)

    def add(self, batch: Any) -> None:
        """Add the next messages, a record batch. All batches must have the same columns."""
        self._messages += len(batch)
        for name in batch.schema.names:
            for part, data in _parts(name, batch.column(name)):
                self._sums[part].update(data)

    def digest(self) -> Digest:
        """Return the digest of all messages added."""
        whole = sha256(self._topic.encode())
        for part in sorted(self._sums):
            whole.update(part.encode() + self._sums[part].digest())
        found = whole.digest()
        mixed = int.from_bytes(found[:_MIXED_BYTES], "little", signed=True)
        total = int.from_bytes(found[_MIXED_BYTES : _MIXED_BYTES + _ADDED_BYTES], "little")
        return Digest(self._messages, mixed, total)


def _parts(name: str, column: Any) -> Iterator[tuple[str, Buffer]]:
    """Yield the buffers that determine the content of a column, each with the name of a hash.

    The caller has one hash for each name, and adds to it the buffers of all batches in order.
    """
    kind = column.type
    if pa.types.is_map(kind):
        offsets = values_of(column.offsets, np.int32)
        yield f"{name} counts", np.diff(offsets).data
        for part, child in (("keys", column.keys), ("items", column.items)):
            inside = child[int(offsets[0]) : int(offsets[-1])]
            yield from _parts(f"{name} {part}", inside)
        return
    there = present(column)
    yield f"{name} present", there.data
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        # Null strings have no bytes, so they need no special treatment.
        _, where, data = column.buffers()
        offsets = np.frombuffer(where, np.int32, len(column) + 1, column.offset * 4)
        yield f"{name} lengths", np.diff(offsets).data
        if offsets[-1] > offsets[0]:
            yield f"{name} bytes", memoryview(data)[int(offsets[0]) : int(offsets[-1])]
        return
    numbers = values_of(column, _NUMBERS[kind.bit_width])
    yield name, (numbers if there.all() else numbers * there).data
