"""The dedup keys of a topic, which tell whether it has stored a message already (B3).

A producer may give a message a *dedup key*. Clients send a digest of 16 bytes in its place. A key
is *stored* when its message is durable. It is *waiting* from the moment its message enters the
commit pipeline until the message is stored or refused. A message with a stored or waiting key is a
duplicate and is not stored again. The answer to a duplicate of a waiting key waits too, behind the
first message in the same lane. If that message is refused, the duplicate is refused too.

Stored keys are in *runs*: columns sorted by the first half of the digest. Small runs are merged
into larger ones, so looking up a batch takes one ``searchsorted`` in each of a few runs. A topic
forgets a key when the topic's dedup window has passed since the message was published. The memory
of the key is freed at most a sixteenth of a window later, when a message is published to the topic
or a checkpoint is written. All topics share a bound on the number of their keys. At the bound,
publishes with new keys are refused until other keys are forgotten, because forgetting a key early
could store its message twice.

Pure: time arrives as an argument. A topic without dedup keys costs nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from escapement.dedup import DIGEST, NO_DIGEST, Digests, halves
from escapement.errors import Busy, LimitExceeded
from escapement.message import Bools, Int64s, UInt64s
from escapement.storage.encoding.dedup_keys import KeyTable

# Results of ``sort_out``: NEW for a message to be stored, WAITING for a duplicate of a message that
# is not durable yet.
NEW: Final = -1
WAITING: Final = -2

# The largest run that a merge may produce. Sorting a run of this size takes about a millisecond.
_RUN_KEYS: Final = 1 << 18
# The most keys in one row of a checkpoint.
_PIECE_KEYS: Final = 1 << 16
_NO_DIGEST: Final = np.frombuffer(NO_DIGEST, DIGEST)[0]


class KeyBudget:
    """The number of dedup keys that all topics have together, and the limit on it."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class _Run(NamedTuple):
    """Stored keys sorted by the first half of their digests; columns of equal length."""

    first: UInt64s  # the digest's first half
    second: UInt64s
    offsets: Int64s
    published_ms: Int64s

    @classmethod
    def of(cls, table: KeyTable) -> _Run:
        parts = halves(table.digests)
        # A stable sort is fast here, because it merges the sorted parts of the table.
        order = np.argsort(parts[:, 0], kind="stable")
        return cls(
            parts[order, 0], parts[order, 1], table.offsets[order], table.published_ms[order]
        )

    def take(self, rows: Bools) -> _Run:
        return _Run(
            self.first[rows], self.second[rows], self.offsets[rows], self.published_ms[rows]
        )

    def table(self) -> KeyTable:
        digests = np.stack([self.first, self.second], axis=1).view(DIGEST).reshape(-1)
        return KeyTable(digests, self.offsets, self.published_ms)


class DedupKeys:
    """The dedup keys of one topic."""

    __slots__ = ("_budget", "_loaded_to", "_oldest_ms", "_runs", "_unstated", "_waiting")

    def __init__(self, budget: KeyBudget) -> None:
        self._budget = budget
        self._runs: list[_Run] = []
        self._unstated: list[KeyTable] = []  # keys stored since the last checkpoint, by offset
        self._waiting: set[bytes] = set()
        self._oldest_ms = 0  # the earliest publication time of all keys in the runs
        self._loaded_to = -1  # the highest offset whose key was loaded from the checkpoint

    def __len__(self) -> int:
        return sum(len(run.offsets) for run in self._runs)

    @property
    def is_used(self) -> bool:
        """Whether the topic has keys, stored or waiting."""
        return bool(self._runs or self._waiting or self._unstated)

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
        self._unstated.append(table)
        self._add(table)

    # -- looking up ----------------------------------------------------------------

    def find(self, digests: Digests, since_ms: int) -> Int64s:
        """Return the offset of the last message stored with each key, or -1; int64[n].

        Args:
          digests: the digests of the keys, V16[n].
          since_ms: ignore keys of messages published at or before this time.
        """
        found = np.full(len(digests), -1, np.int64)
        if self._runs:
            parts = halves(digests)
            first, second = np.ascontiguousarray(parts[:, 0]), parts[:, 1]
            for run in self._runs:
                _find(run, first, second, since_ms, found)
        return found

    # -- forgetting ----------------------------------------------------------------

    def is_stale(self, now_ms: int, window_ms: int) -> bool:
        """Return whether the oldest key left the dedup window at least a sixteenth of it ago."""
        return bool(self._runs) and self._oldest_ms <= now_ms - window_ms - window_ms // 16

    def forget(self, now_ms: int, window_ms: int) -> None:
        """Remove all keys older than the dedup window, if ``is_stale`` says that it is time."""
        if not self.is_stale(now_ms, window_ms):
            return
        before = len(self)
        kept = [run.take(run.published_ms > now_ms - window_ms) for run in self._runs]
        self._runs = [run for run in kept if len(run.offsets)]
        self._oldest_ms = min((int(run.published_ms.min()) for run in self._runs), default=0)
        self._budget.used -= before - len(self)

    def drop(self) -> None:
        """Remove all keys and give back their share of the budget: the topic was deleted."""
        self._budget.used -= len(self) + len(self._waiting)
        self._budget = KeyBudget(0)
        self._runs = []

    # -- what checkpoints write, and a start reads -----------------------------------

    def take_unstated(self) -> list[KeyTable]:
        """Return the keys stored since the last checkpoint, in pieces of bounded size."""
        tables, self._unstated = self._unstated, []
        return _pieces(KeyTable.concat(tables)) if tables else []

    def all_keys(self) -> list[KeyTable]:
        """Return all stored keys, in pieces of bounded size, for a checkpoint to write."""
        self._unstated = []
        return [piece for run in self._runs for piece in _pieces(run.table())]

    def load(self, table: KeyTable) -> None:
        """Add keys from a checkpoint."""
        self._budget.used += len(table.offsets)
        self._loaded_to = max(self._loaded_to, int(table.offsets.max(initial=-1)))
        self._add(table)

    def recover(self, table: KeyTable) -> None:
        """Add keys from the journal, except those that ``load`` added from the checkpoint."""
        fresh = table.offsets > self._loaded_to
        if fresh.any():
            table = table.take(fresh)
            self._budget.used += len(table.offsets)
            self._unstated.append(table)
            self._add(table)

    def _add(self, table: KeyTable) -> None:
        if not len(table.offsets):
            return
        oldest_ms = int(table.published_ms.min())
        self._oldest_ms = min(self._oldest_ms, oldest_ms) if self._runs else oldest_ms
        self._runs.append(_Run.of(table))
        while len(self._runs) > 1:
            one, other = self._runs[-2:]
            together = len(one.offsets) + len(other.offsets)
            if len(one.offsets) > 2 * len(other.offsets) or together > _RUN_KEYS:
                return
            self._runs[-2:] = [_Run.of(KeyTable.concat([one.table(), other.table()]))]


def _find(run: _Run, first: UInt64s, second: UInt64s, since_ms: int, found: Int64s) -> None:
    """Update ``found`` with the highest offset at which the run has each key.

    Costs O(n log run), and more if many keys of the run have the same first half.

    Args:
      first, second: the halves of the digests to find.
      since_ms: ignore keys of messages published at or before this time.
      found: the highest offset found so far for each digest, or -1.
    """
    at = np.searchsorted(run.first, first)
    rows = np.flatnonzero(at < len(run.first))
    while len(rows):
        rows = rows[run.first[at[rows]] == first[rows]]
        run_rows = at[rows]
        same = (run.second[run_rows] == second[rows]) & (run.published_ms[run_rows] > since_ms)
        hits = rows[same]
        found[hits] = np.maximum(found[hits], run.offsets[run_rows[same]])
        at[rows] += 1
        rows = rows[at[rows] < len(run.first)]


def _keys(digests: Digests) -> list[bytes]:
    keys: list[bytes] = digests[digests != _NO_DIGEST].tolist()
    return keys


def _pieces(table: KeyTable) -> list[KeyTable]:
    return [
        table.take(slice(low, low + _PIECE_KEYS))
        for low in range(0, len(table.offsets), _PIECE_KEYS)
    ]
