"""Blocking calls that a test holds back, to do other things before they finish."""

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
KEYS: Final = "Plan.read_traits"  # a window, or a part of a backlog, from segments on disk
ORDER: Final = "Plan.read"  # only the delivery order, from segments on disk
BACKFILL: Final = "Backfiller._fetch"  # rows of the log that a lost index lacks
FETCH: Final = "Fetch.read_there"  # payloads of a frame, from segments on disk

# On the real clock, because a virtual clock may stand still or jump.
_TIMEOUT_S: Final = 60.0


def uncached(config: BrokerConfig) -> BrokerConfig:
    """Return the config without the index cache, so every read goes to the segments."""
    return replace(config, limits=replace(config.limits, index_cache_bytes=0))


class Held:
    """A runner of blocking calls that runs them at once, except calls of a held kind.

    As in a thread, a cancellation does not end a held call.

    Args:
      timeout_s: how long ``reached`` waits, in real seconds.
    """

    def __init__(self, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._kind = ""
        self._passing = 0
        self._reached = trio.Event()
        self._released = trio.Event()

    async def __call__(self, function: Callable[..., T], /, *arguments: Any) -> T:
        await trio.lowlevel.checkpoint()
        if self._kind and getattr(function, "__qualname__", "") == self._kind:
            self._passing -= 1
            if self._passing >= 0:
                return function(*arguments)
            self._reached.set()
            with trio.CancelScope(shield=True):
                await self._released.wait()
        return function(*arguments)

    @contextmanager
    def hold(self, kind: str, passing: int = 0) -> Iterator[None]:
        """Hold calls of this kind until the ``with`` block ends.

        Args:
          passing: how many calls run before one is held.
        """
        self._kind, self._passing = kind, passing
        self._reached, self._released = trio.Event(), trio.Event()
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Let the held call run, and hold no more."""
        self._kind = ""
        self._released.set()

    async def reached(self) -> None:
        """Wait until a call is held; fail if none comes in time."""
        token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as timeout:
            alarm = threading.Timer(self._timeout_s, token.run_sync_soon, [timeout.cancel])
            alarm.start()
            try:
                await self._reached.wait()
            finally:
                alarm.cancel()
                alarm.join()
        if timeout.cancelled_caught:
            raise AssertionError(f"no call of {self._kind!r} within {self._timeout_s} s")
