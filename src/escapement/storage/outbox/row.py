"""A row of an outbox, as the parts of a message or of a request about messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from escapement.message import DEFAULT_PRIORITY
from escapement.storage.engine.base import Row
from escapement.storage.outbox.record import DIGEST_BYTES, MovedRow, RowId

# The number of columns that each row has, before those that become headers.
_FIXED: Final = 9


class OutboxRow(NamedTuple):
    """A row of an outbox. ``payload`` is None if it is NULL, or the row is too large.

    ``action`` is None for a message.
    """

    id: RowId
    topic: str
    key: str
    payload: bytes | None
    headers: str | None
    due_ms: int | None
    dedup_key: str | None
    priority: int
    action: str | None

    @classmethod
    def of(cls, row: Row, due_unit: tuple[int, int], header_names: Sequence[str]) -> OutboxRow:
        """Return a row as ``Statements.read`` selects it.

        Args:
          due_unit: the factor and the divisor that make milliseconds of the due time. The result
            is rounded up.
          header_names: the names of the headers in the last columns of the row.
        """
        id, topic, key, payload, headers, due, dedup_key, priority, action = row[:_FIXED]
        factor, divisor = due_unit
        return cls(
            id,
            text(topic or ""),
            text(key or ""),
            None if payload is None else bytes(payload),
            _headers(None if headers is None else text(headers), header_names, row[_FIXED:]),
            None if due is None else -(-int(due) * factor // divisor),
            None if dedup_key is None else text(dedup_key),
            DEFAULT_PRIORITY if priority is None else int(priority),
            None if action is None else text(action),
        )

    def moved(self) -> MovedRow:
        """Return the id and the digest under which the record of the outbox has this row."""
        found = blake2b(digest_size=DIGEST_BYTES)
        payload = self.payload or b""
        found.update(repr((self._replace(payload=None), len(payload))).encode())
        found.update(payload)
        return MovedRow(self.id, found.digest())


def text(value: str | bytes | memoryview) -> str:
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "replace")


def _headers(headers: str | None, names: Sequence[str], values: Sequence[Any]) -> str | None:
    """Return headers with those of columns. Headers that are not valid stay as they are."""
    if not names:
        return headers
    try:
        merged = json.loads(headers or "{}")
    except (ValueError, RecursionError):
        return headers
    if not isinstance(merged, dict):
        return headers
    for name, value in zip(names, values, strict=True):
        if value is not None:
            merged[name] = text(value)
    return json.dumps(merged)
