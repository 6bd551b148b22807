"""The dedup keys of a topic, which tell whether it has stored a message already (B3).

A producer may give a message a *dedup key*. Clients send a digest of 16 bytes in its place. A key
is *stored* when its message is durable. It is *waiting* from the moment its message enters the
commit pipeline until the message is stored or refused. A message with a stored or waiting key is a
duplicate and is not stored again. The answer to a duplicate of a waiting key waits too, behind the
first message in the same lane. If that message is refused, the duplicate is refused too.

A :class:`~escapement.broker.topic.key_store.KeyStore` has the stored keys. A topic
forgets a key when the topic's dedup window has passed since the message was published. The memory
of the key is freed at most a sixteenth of a window later, when a message is published to the topic
or a checkpoint is written. All topics share a bound on the number of their keys. At the bound,
publishes with new keys are refused until other keys are forgotten, because forgetting a key early
could store its message twice.

Pure: time arrives as an argument. A topic without dedup keys costs nothing.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.broker.topic.key_store import KeyBudget, KeyStore
from escapement.dedup import DIGEST, NO_DIGEST, Digests
from escapement.errors import Busy, LimitExceeded
from escapement.message import Int64s
from escapement.storage.encoding.dedup_keys import KeyTable

# Results of ``sort_out``: NEW for a message to be stored, WAITING for a duplicate of a message that
# is not durable yet.
NEW: Final = -1
WAITING: Final = -2

_NO_DIGEST: Final = np.frombuffer(NO_DIGEST, DIGEST)[0]


class DedupKeys(KeyStore[KeyTable]):
    """The dedup keys of one topic."""

    __slots__ = ("_oldest_ms", "_waiting")

    def __init__(self, budget: KeyBudget) -> None:
        super().__init__(KeyTable, budget)
        self._waiting: set[bytes] = set()
        self._oldest_ms = 0  # the earliest publication time of all stored keys

    @property
    def is_used(self) -> bool:
        """Whether the topic has keys, stored or waiting."""
        return bool(self._waiting) or super().is_used

    # -- publishing ----------------------------------------------------------------

    def sort_out(self, digests: Digests, since_ms: int) -> Int64s:
        """Return for each message of a batch ``NEW``, ``WAITING``, or the stored message's offset.

        Args:
          digests: the digest of each message's key, V16[n]. It is zero for a message without a
            key, which is always new.
          since_ms: ignore keys of messages published at or before this time.

        Returns:
          int64[n]. If several messages of the batch have the same new key, the first of them is
          ``NEW`` and the others are ``WAITING``.

        Raises:
          Busy: if there is no room for the new keys now.
          LimitExceeded: if the batch alone has more new keys than all topics may have together.
        """
        found = self.find(digests, since_ms)
        keyed = digests != _NO_DIGEST
        texts = digests.tolist()
        if not self._waiting.isdisjoint(texts):
            held = np.fromiter(map(self._waiting.__contains__, texts), bool, len(texts))
            found[held] = WAITING
        if len(set(texts)) < len(texts):
            firsts = np.unique(digests.view("S16"), return_index=True)[1]
            again = keyed & (found == NEW)
            again[firsts] = False
            found[again] = WAITING
        self._check_room(int((keyed & (found == NEW)).sum()))
        return found

    def _check_room(self, count: int) -> None:
        limit = self._budget.limit
        if count > limit:
            raise LimitExceeded(
                f"{count} new dedup keys exceed the limit of {limit} for all topics together; "
                "send smaller batches"
            )
        if self._budget.used + count > limit:
            raise Busy(
                f"the limit of {limit} dedup keys is reached; "
                "publish again when the dedup windows of some keys have passed"
            )

    def hold(self, digests: Digests) -> None:
        """Mark keys as waiting. ``store`` or ``release`` must follow for each key."""
        keys = _keys(digests)
        self._waiting.update(keys)
        self._budget.used += len(keys)

    def release(self, digests: Digests) -> None:
        """Remove waiting keys whose messages were refused."""
        keys = _keys(digests)
        self._waiting.difference_update(keys)
        self._budget.used -= len(keys)

    def store(self, table: KeyTable) -> None:
        """Store waiting keys, whose messages are now durable. Every row must have a key."""
        self._waiting.difference_update(table.digests.tolist())
        self.add(table)

    # -- looking up ----------------------------------------------------------------

    def find(self, digests: Digests, since_ms: int) -> Int64s:
        """Return the offset of the last message stored with each key, or -1; int64[n].

        Args:
          digests: the digests of the keys, V16[n].
          since_ms: ignore keys of messages published at or before this time.
        """
        return self.find_rows(digests, since_ms)[0]

    # -- forgetting ----------------------------------------------------------------

    def is_stale(self, now_ms: int, window_ms: int) -> bool:
        """Return whether the oldest key left the dedup window at least a sixteenth of it ago."""
        return bool(self._runs) and self._oldest_ms <= now_ms - window_ms - window_ms // 16

    def forget(self, now_ms: int, window_ms: int) -> None:
        """Remove all keys older than the dedup window, if ``is_stale`` says that it is time."""
        if not self.is_stale(now_ms, window_ms):
            return
        self.keep(lambda run: run.numbers[1] > now_ms - window_ms)
        self._oldest_ms = min((int(run.numbers[1].min()) for run in self._runs), default=0)

    def drop(self) -> None:
        self._budget.used -= len(self._waiting)
        super().drop()

    def _insert(self, table: KeyTable) -> None:
        if len(table.offsets):
            oldest_ms = int(table.published_ms.min())
            self._oldest_ms = min(self._oldest_ms, oldest_ms) if self._runs else oldest_ms
        super()._insert(table)


def _keys(digests: Digests) -> list[bytes]:
    keys: list[bytes] = digests[digests != _NO_DIGEST].tolist()
    return keys
