"""How a message replaces a pending message that has the same replace key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from escapement.client.constructor import internal
from escapement.client.delivery_times import Delay, delay_ms
from escapement.dedup import NO_DIGEST, Digests, column, digest
from escapement.durations import MAX_DURATION_MS, format
from escapement.errors import InvalidRequest
from escapement.message import Int64s
from escapement.replacement import FIRST, LATEST


class Replace:
    """A replace key, and how a new message meets a pending one with the same key.

    Create it with ``latest``, ``first`` or ``debounce``.
    """

    __slots__ = ("_digest", "_mode", "key")

    @internal
    def __init__(self, key: str, mode: int) -> None:
        self.key: Final = key
        self._digest = digest(key, "replace key")
        self._mode = mode

    def __repr__(self) -> str:
        return f"<Replace {self.key!r}>"

    @classmethod
    def latest(cls, key: str) -> Replace:
        """Replace the pending message: only the new one is delivered. A plain str means this."""
        return cls(key, LATEST)

    @classmethod
    def first(cls, key: str) -> Replace:
        """Keep the pending message, and drop the new one."""
        return cls(key, FIRST)

    @classmethod
    def debounce(cls, key: str, *, max_wait: Delay) -> Replace:
        """Replace the pending message, but deliver at the latest ``max_wait`` after the first.

        Each new message puts the delivery off by its own delay. ``max_wait`` counts from the moment
        the broker accepted the first message of the chain, in which each message replaced the one
        before it.
        """
        wait_ms = delay_ms(max_wait, "max_wait", 1)
        if wait_ms > MAX_DURATION_MS:
            longest = format(MAX_DURATION_MS)
            raise InvalidRequest(f"max_wait must be at most {longest}, not {format(wait_ms)}")
        return cls(key, wait_ms)


class ReplaceColumns(NamedTuple):
    """The replace keys of a batch: their digests, zero bytes for none, and their modes."""

    digests: Digests
    modes: Int64s

    @classmethod
    def of(cls, replaces: Sequence[Replace | str | None]) -> ReplaceColumns:
        """Return the columns of a list with an element for each message.

        Raises:
          InvalidRequest: if a key is not valid.
        """
        found = [None if one is None else replacing(one) for one in replaces]
        return cls(
            column([NO_DIGEST if one is None else one._digest for one in found]),
            np.array([LATEST if one is None else one._mode for one in found], np.int64),
        )

    def part(self, rows: slice) -> ReplaceColumns:
        """Return the columns of some messages."""
        return ReplaceColumns(self.digests[rows], self.modes[rows])


def replacing(replace: Replace | str) -> Replace:
    """Return a ``Replace`` for the argument of an application; a str is the key of ``latest``.

    Raises:
      InvalidRequest: if it is neither.
    """
    if isinstance(replace, Replace):
        return replace
    if not isinstance(replace, str):
        raise InvalidRequest(f"replace must be a str or a Replace, not {replace!r}")
    return Replace.latest(replace)
