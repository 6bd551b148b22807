"""Blocking calls that a test holds back, so that what it starts meanwhile comes second."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

import trio

from escapement.broker.broker import BrokerConfig

T = TypeVar("T")

COMMIT: Final = "Writer.write"  # one group of the commit pipeline
KEYS: Final = "Plan.read_traits"  # a window, or a piece of a backlog, out of segments on disk
ORDER: Final = "Plan.read"  # the delivery order alone, out of segments on disk
FETCH: Final = "Fetch.read_there"  # payloads of a frame, out of segments on disk

# On the real clock, whichever the test is on: a virtual one may stand still, or leap.
_TIMEOUT_S: Final = 60.0


def uncached(config: BrokerConfig) -> BrokerConfig:
    """The same without a cache of the index's blocks: what is in segments is read from there."""
    return replace(config, limits=replace(config.limits, index_cache_bytes=0))


class Held:
    """Where blocking calls run: at once, but for those of one kind while it is held.

    Like a call in a thread, one that is held goes on in spite of a cancellation.

    Args:
      patience_s: how long one is waited for, in real seconds.
    """

    def __init__(self, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._kind = ""
        self._reached = trio.Event()
        self._released = trio.Event()

    async def __call__(self, function: Callable[..., T], /, *arguments: Any) -> T:
        await trio.lowlevel.checkpoint()
        if self._kind and getattr(function, "__qualname__", "") == self._kind:
            self._reached.set()
            with trio.CancelScope(shield=True):
                await self._released.wait()
        return function(*arguments)

    @contextmanager
    def hold(self, kind: str) -> Iterator[None]:
        """Inside, calls of this kind wait until the block ends."""
        self._kind = kind
        self._reached, self._released = trio.Event(), trio.Event()
        try:
            yield
        finally:
            self._kind = ""
            self._released.set()

    async def reached(self) -> None:
        """Wait until a call is held; fails if none is made, because it has another name, say."""
        token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as patience:
            alarm = threading.Timer(self._timeout_s, token.run_sync_soon, [patience.cancel])
            alarm.start()
            try:
                await self._reached.wait()
            finally:
                alarm.cancel()
                alarm.join()
        if patience.cancelled_caught:
            raise AssertionError(f"nothing has called {self._kind!r} for {self._timeout_s} s")
