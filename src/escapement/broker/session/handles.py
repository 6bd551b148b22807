"""What one connection has open of one kind, by the ids that the peer chose.

An id is *claimed* before its handle is opened, because opening waits for the database and
the peer may name the id again meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from escapement.errors import InvalidRequest, LimitExceeded

T = TypeVar("T")

# A peer that opens more than this has lost count.
MAX_HANDLES: Final = 10_000


class Handles(Generic[T]):
    """See the module's docstring."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[int, T | None] = {}  # None: claimed, being opened

    def claim(self, handle_id: int) -> None:
        """Keep an id for what is about to be opened under it.

        Raises:
          InvalidRequest: if it is in use.
          LimitExceeded: if the connection has too many open.
        """
        if handle_id in self._by_id:
            raise InvalidRequest(f"the id {handle_id} is in use on this connection")
        if len(self._by_id) >= MAX_HANDLES:
            raise LimitExceeded(f"a connection may open {MAX_HANDLES} of these")
        self._by_id[handle_id] = None

    def give_up(self, handle_id: int) -> None:
        """What was to be opened under a claimed id was not."""
        del self._by_id[handle_id]

    def enter(self, handle_id: int, handle: T) -> None:
        """It is open."""
        self._by_id[handle_id] = handle

    def find(self, handle_id: int) -> T | None:
        """What is open under an id."""
        return self._by_id.get(handle_id)

    def take(self, handle_id: int) -> T | None:
        """What was open under an id, which is free from now on."""
        handle = self._by_id.get(handle_id)
        if handle is not None:
            del self._by_id[handle_id]
        return handle

    def open(self) -> Iterator[T]:
        """All that is open."""
        return (handle for handle in self._by_id.values() if handle is not None)

    def clear(self) -> None:
        """Forget all of it."""
        self._by_id.clear()
