"""A pool of values: opened at their first use, shared by requests, and closed without use.

The gateway has a pool of clients, one for each token, and each client has a pool of producers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Generic, TypeVar

import trio

from escapement.errors import Busy, EscapementError

Value = TypeVar("Value")


class Pool(Generic[Value]):
    """The values of some keys.

    Args:
      noun: what a value is called in errors, in the plural.
      most: the most values. Opening another one closes the value that was used longest ago.
      idle_s: how long a value stays open without use.
      open: opens the value of a key.
      close: closes a value.
      is_broken: whether a value can never be used again.
    """

    def __init__(
        self,
        noun: str,
        most: int,
        idle_s: float,
        open: Callable[[str], Awaitable[Value]],
        close: Callable[[Value], Awaitable[None]],
        is_broken: Callable[[Value], bool],
    ) -> None:
        self._noun = noun
        self._most = most
        self._idle_s = idle_s
        self._open = open
        self._close = close
        self._is_broken = is_broken
        self._entries: OrderedDict[str, _Entry[Value]] = OrderedDict()  # used longest ago first

    def values(self) -> list[Value]:
        """Return the values that are open."""
        return [entry.value for entry in self._entries.values() if entry.value is not None]

    @asynccontextmanager
    async def use(self, key: str) -> AsyncIterator[Value]:
        """Lend the value of a key. It stays open in the meantime.

        Raises:
          Busy: if the pool is full of values in use.
          EscapementError: if the value cannot be opened.
        """
        entry = self._entries.get(key)
        if entry is not None and self._is_over(entry) and not entry.users:
            del self._entries[key]  # it broke after its last use
            entry = None
        if entry is None:
            entry = self._entries[key] = _Entry()
        self._entries.move_to_end(key)
        entry.users += 1
        try:
            if entry.value is None:
                async with entry.opening:  # the first user opens it, and the others wait
                    if entry.value is None:
                        entry.value = await self._opened(key)
            yield entry.value
        finally:
            entry.users -= 1
            entry.used_s = trio.current_time()
            # Further users of an entry without a value try to open it again.
            if (
                self._is_over(entry)
                and self._entries.get(key) is entry
                and (entry.value is not None or not entry.users)
            ):
                del self._entries[key]

    def _is_over(self, entry: _Entry[Value]) -> bool:
        return entry.value is None or self._is_broken(entry.value)

    async def _opened(self, key: str) -> Value:
        """Open a value, and then make room for it. So a value that cannot be opened closes none."""
        self._unused()
        value = await self._open(key)
        try:
            while (unused := self._unused()) is not None:
                await self._shut(self._entries.pop(unused))
        except BaseException:
            with trio.CancelScope(shield=True), suppress(EscapementError):
                await self._close(value)
            raise
        return value

    def _unused(self) -> str | None:
        """Return the key to close before another value opens; None if there is room.

        Raises:
          Busy: if all values are in use.
        """
        values = {key: entry for key, entry in self._entries.items() if entry.value is not None}
        if len(values) < self._most:
            return None
        for key, entry in values.items():
            if not entry.users:
                return key
        raise Busy(f"The gateway uses {self._most} {self._noun} at once. Try again later.")

    async def close_idle(self) -> None:
        """Close the values without use for ``idle_s``."""
        before_s = trio.current_time() - self._idle_s
        idle = [
            key
            for key, entry in self._entries.items()
            if not entry.users and entry.used_s <= before_s
        ]
        for key in idle:
            entry = self._entries.get(key)
            if entry is not None and not entry.users:
                await self._shut(self._entries.pop(key))

    async def close_all(self) -> None:
        """Close all values."""
        while self._entries:
            await self._shut(self._entries.popitem()[1])

    async def _shut(self, entry: _Entry[Value]) -> None:
        if entry.value is not None:
            with suppress(EscapementError):  # its users have got the error
                await self._close(entry.value)


class _Entry(Generic[Value]):
    """A value, or None while it is not open yet."""

    __slots__ = ("opening", "used_s", "users", "value")

    def __init__(self) -> None:
        self.value: Value | None = None
        self.users = 0
        self.used_s = trio.current_time()
        self.opening = trio.Lock()
