"""The dedup keys that a topic remembers: which messages it has had already (B3).

A key is *stored* when its message is durable, and *waiting* from when its message is handed
to the commit pipeline until it is stored or refused. A message whose key is either is a
repetition and is not stored again; of a waiting one the answer waits too, behind the first
in the same lane, and is refused if that one is.

Stored keys stand in *runs*: columns sorted by half of the digest, small ones merged into
larger ones, so that a batch is looked up by one ``searchsorted`` in each of a few. A key is
forgotten when its window has passed since it was published; memory is given back a
sixteenth of a window later at most, while the topic is published to or checkpoints are
written. Keys of all topics share a bound; at it, publishes with new keys are refused until
others are forgotten, because to forget one early would store its message twice.

Pure: time arrives as an argument. A topic without dedup keys costs nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.dedup import DIGEST, NO_DIGEST, Digests, halves
from escapement.errors import Busy, LimitExceeded
from escapement.message import Int64s
from escapement.storage.dedupkeys import KeyTable

# What ``sort_out`` says of a message that is to be stored, and of one that is stored only
# when all handed in before it is.
NEW: Final = -1
WAITING: Final = -2

# Runs are merged up to this: a millisecond or so for sorting.
_RUN_KEYS: Final = 1 << 18
_PIECE_KEYS: Final = 1 << 16
_NO_DIGEST: Final = np.frombuffer(NO_DIGEST, DIGEST)[0]

UInt64s = npt.NDArray[np.uint64]


class KeyBudget:
    """How many keys all topics remember together, and may."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class _Run(NamedTuple):
    """Keys sorted by ``first``; columns of one height."""

    first: UInt64s  # the digest's first half
    second: UInt64s
    offsets: Int64s
    published_ms: Int64s

    @classmethod
    def of(cls, table: KeyTable) -> _Run:
        parts = halves(table.digests)
        # Stable, because that merges what is sorted in parts.
        order = np.argsort(parts[:, 0], kind="stable")
        return cls(
            parts[order, 0], parts[order, 1], table.offsets[order], table.published_ms[order]
        )

    def take(self, rows: npt.NDArray[np.bool_]) -> _Run:
        return _Run(
            self.first[rows], self.second[rows], self.offsets[rows], self.published_ms[rows]
        )

    def table(self) -> KeyTable:
        digests = np.stack([self.first, self.second], axis=1).view(DIGEST).reshape(-1)
        return KeyTable(digests, self.offsets, self.published_ms)


class DedupKeys:
    """See the module's docstring."""

    __slots__ = ("_budget", "_loaded_to", "_oldest_ms", "_runs", "_unstated", "_waiting")

    def __init__(self, budget: KeyBudget) -> None:
        self._budget = budget
        self._runs: list[_Run] = []
        self._unstated: list[KeyTable] = []  # since the last checkpoint, by offset
        self._waiting: set[bytes] = set()
        self._oldest_ms = 0  # of the runs
        self._loaded_to = -1  # the last offset that a checkpoint's parts have a key of

    def __len__(self) -> int:
        return sum(len(run.offsets) for run in self._runs)

    @property
    def is_used(self) -> bool:
        """Whether there are keys, stored or waiting."""
        return bool(self._runs or self._waiting or self._unstated)

    # -- publishing ----------------------------------------------------------------

    def sort_out(self, digests: Digests, since_ms: int) -> Int64s:
        """What each message of a batch is: ``NEW``, ``WAITING``, or a stored one's offset.

        Args:
          digests: V16[n], zero for a message without a key, which is always new.
          since_ms: keys published then or earlier are forgotten.

        Returns:
          int64[n]. Of equal keys in the batch the first may be new, the others wait for it.

        Raises:
          Busy: if there is no room to remember the new keys.
          LimitExceeded: if there never will be.
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
            raise LimitExceeded(f"{count} dedup keys are more than the {limit} of all topics")
        if self._budget.used + count > limit:
            raise Busy(
                f"{limit} dedup keys are remembered, as many as there may be; "
                "ask again when some of them are forgotten"
            )

    def hold(self, digests: Digests) -> None:
        """Messages with these keys were handed in; ``store`` or ``let_go`` follows for each."""
        keys = _keys(digests)
        self._waiting.update(keys)
        self._budget.used += len(keys)

    def let_go(self, digests: Digests) -> None:
        """They were refused."""
        keys = _keys(digests)
        self._waiting.difference_update(keys)
        self._budget.used -= len(keys)

    def store(self, table: KeyTable) -> None:
        """Messages that were held are durable; none of them is without a key."""
        self._waiting.difference_update(table.digests.tolist())
        self._unstated.append(table)
        self._add(table)

    # -- looking up ----------------------------------------------------------------

    def find(self, digests: Digests, since_ms: int) -> Int64s:
        """The offset of the last message stored with each key, or -1; int64[n].

        Args:
          since_ms: keys published then or earlier are forgotten.
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
        """Whether it is worth while to forget what was published before the window."""
        return bool(self._runs) and self._oldest_ms <= now_ms - window_ms - window_ms // 16

    def forget(self, now_ms: int, window_ms: int) -> None:
        """Give back the memory of keys whose window has passed, if it is worth while."""
        if not self.is_stale(now_ms, window_ms):
            return
        before = len(self)
        kept = [run.take(run.published_ms > now_ms - window_ms) for run in self._runs]
        self._runs = [run for run in kept if len(run.offsets)]
        self._oldest_ms = min((int(run.published_ms.min()) for run in self._runs), default=0)
        self._budget.used -= before - len(self)

    def drop(self) -> None:
        """The topic was deleted: what it remembers, or waits for, counts no more."""
        self._budget.used -= len(self) + len(self._waiting)
        self._budget = KeyBudget(0)
        self._runs = []

    # -- what checkpoints write, and a start reads -----------------------------------

    def take_unstated(self) -> list[KeyTable]:
        """The keys since the last checkpoint, in pieces of bounded size."""
        tables, self._unstated = self._unstated, []
        return _pieces(KeyTable.concat(tables)) if tables else []

    def all_keys(self) -> list[KeyTable]:
        """All keys, in pieces of bounded size; none are unstated any more."""
        self._unstated = []
        return [piece for run in self._runs for piece in _pieces(run.table())]

    def load(self, table: KeyTable) -> None:
        """Take what a checkpoint wrote."""
        self._budget.used += len(table.offsets)
        self._loaded_to = max(self._loaded_to, int(table.offsets.max(initial=-1)))
        self._add(table)

    def recover(self, table: KeyTable) -> None:
        """Take what the journal says, which a checkpoint may have written already."""
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
    """Raise ``found`` to the highest offset in the run; O(n log run), and more for equal halves."""
    at = np.searchsorted(run.first, first)
    rows = np.flatnonzero(at < len(run.first))
    while len(rows):
        rows = rows[run.first[at[rows]] == first[rows]]
        places = at[rows]
        same = (run.second[places] == second[rows]) & (run.published_ms[places] > since_ms)
        hits = rows[same]
        found[hits] = np.maximum(found[hits], run.offsets[places[same]])
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
