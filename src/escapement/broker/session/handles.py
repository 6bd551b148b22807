"""The open producers or consumers of one connection, by the ids that the peer chose.

An id is *claimed* before its handle is opened, because opening waits for the database and
the peer may use the id again meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from escapement.errors import InvalidRequest, LimitExceeded

T = TypeVar("T")

# The most open handles of one kind.
MAX_HANDLES: Final = 10_000


class Handles(Generic[T]):
    """The open handles of one kind, such as "producer"."""

    __slots__ = ("_by_id", "_kind")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._by_id: dict[int, T | None] = {}  # None: claimed, being opened

    @contextmanager
    def claimed(self, handle_id: int) -> Iterator[None]:
        """Claim an id for a handle that the ``with`` block opens and enters.

        If the block ends and has entered no handle, the id is free again.

        Raises:
          InvalidRequest: if it is in use.
          LimitExceeded: if the connection has too many open.
        """
        if handle_id in self._by_id:
            raise InvalidRequest(f"the id {handle_id} is in use on this connection")
        if len(self._by_id) >= MAX_HANDLES:
            raise LimitExceeded(f"a connection may have at most {MAX_HANDLES} {self._kind}s open")
        self._by_id[handle_id] = None
        try:
            yield
        finally:
            if self._by_id.get(handle_id) is None:
                self._by_id.pop(handle_id, None)

    def enter(self, handle_id: int, handle: T) -> None:
        """Enter the handle that was opened under a claimed id."""
        self._by_id[handle_id] = handle

    def find(self, handle_id: int) -> T | None:
        """Return the open handle of an id; None if there is none."""
        return self._by_id.get(handle_id)

    def get(self, handle_id: int) -> T:
        """Return the open handle of an id. Raises ``InvalidRequest`` if there is none."""
        handle = self.find(handle_id)
        if handle is None:
            raise InvalidRequest(
                f"{self._kind} {handle_id} is not open on this connection, or no longer"
            )
        return handle

    def take(self, handle_id: int) -> T | None:
        """Remove and return the open handle of an id; None if there is none."""
        handle = self._by_id.get(handle_id)
        if handle is not None:
            del self._by_id[handle_id]
        return handle

    def open(self) -> Iterator[T]:
        """Return all open handles."""
        return (handle for handle in self._by_id.values() if handle is not None)

    def items(self) -> list[tuple[int, T]]:
        """Return the id and the handle of each open one. They may be taken meanwhile."""
        return [(id, handle) for id, handle in self._by_id.items() if handle is not None]

    def clear(self) -> None:
        """Forget all handles."""
        self._by_id.clear()
