"""That what was written is what was read: sums over the content of files.

The content of a file is summed up column by column, with SHA-256: of numbers their bytes, of
strings their lengths and all bytes end to end. So no message is looked at by itself, and the sum
is the same however messages are cut into batches; in another order, or with one exchanged for
another, it is another. Sums of files add up, whatever order tasks made these in.
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
# Of a file's SHA-256: a signed integer that is mixed, and an unsigned one that is added.
_MIXED_BYTES: Final = 8
_ADDED_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Digest:
    """How many messages, and two sums over the files that they are in; of nothing all is 0."""

    messages: int = 0
    mixed: int = 0  # by exclusive or; 64 bits, with a sign as Spark has it
    total: int = 0  # by addition, of 32 bits each

    def __add__(self, other: Digest) -> Digest:
        return Digest(
            self.messages + other.messages, self.mixed ^ other.mixed, self.total + other.total
        )

    @property
    def content(self) -> str:
        """The sums as 32 hexadecimal digits."""
        return f"{self.mixed & _MASK:016x}{self.total & _MASK:016x}"


class Content:
    """What was seen of one file so far; see the module's docstring."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._messages = 0
        self._sums: dict[str, Any] = defaultdict(sha256)

    def add(self, batch: Any) -> None:
        """The messages that come next, as a record batch; always with the same columns."""
        self._messages += len(batch)
        for name in batch.schema.names:
            for part, data in _parts(name, batch.column(name)):
                self._sums[part].update(data)

    def digest(self) -> Digest:
        """Of all that was added."""
        whole = sha256(self._topic.encode())
        for part in sorted(self._sums):
            whole.update(part.encode() + self._sums[part].digest())
        found = whole.digest()
        mixed = int.from_bytes(found[:_MIXED_BYTES], "little", signed=True)
        total = int.from_bytes(found[_MIXED_BYTES : _MIXED_BYTES + _ADDED_BYTES], "little")
        return Digest(self._messages, mixed, total)


def _parts(name: str, column: Any) -> Iterator[tuple[str, Buffer]]:
    """The bytes that tell what is in a column, by names; those of a name follow each other."""
    kind = column.type
    if pa.types.is_map(kind):
        places = values_of(column.offsets, np.int32)
        yield f"{name} counts", np.diff(places).data
        for part, child in (("keys", column.keys), ("items", column.items)):
            inside = child[int(places[0]) : int(places[-1])]
            yield from _parts(f"{name} {part}", inside)
        return
    there = present(column)
    yield f"{name} present", there.data
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        # A null one has no bytes.
        _, where, data = column.buffers()
        places = np.frombuffer(where, np.int32, len(column) + 1, column.offset * 4)
        yield f"{name} lengths", np.diff(places).data
        if places[-1] > places[0]:
            yield f"{name} bytes", memoryview(data)[int(places[0]) : int(places[-1])]
        return
    numbers = values_of(column, _NUMBERS[kind.bit_width])
    yield name, (numbers if there.all() else numbers * there).data
