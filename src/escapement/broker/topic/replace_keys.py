"""The replace keys of a topic: which pending message a new one with the same key meets (B11).

The store has an entry for the last message of each replace key that was stored. A message is
*pending* while no subscription got it, or may have got it, and a subscription is still to get it.
An entry whose message is not pending any more is *stale*: it has no effect, and ``purge`` removes
it. All topics share a bound on the number of their entries, stale ones included.

``decide`` answers what happens to new messages. It is called when their group commit is formed, and
one group of a topic is under way at a time. So the answer depends only on durable messages and on
those of the group itself. ``broker/publishing/replacing.py`` carries the answer out.

Pure: time arrives as an argument. A topic without replace keys costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from escapement.broker.log.amendments import Amendments
from escapement.broker.subscription.ordered import OrderedSubscription
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.key_store import KeyBudget, KeyStore, Run
from escapement.errors import Busy, LimitExceeded
from escapement.message import Bools, Int64s
from escapement.replacement import FIRST
from escapement.storage.commit.items import KeyedMessages
from escapement.storage.encoding.replace_keys import ReplaceTable

# Entries that a topic may gain before stale ones are looked for, besides as many as it had left
# after the last look.
_SPARE: Final = 4096


class Decision(NamedTuple):
    """The decision about new messages with replace keys, and pending ones that they meet.

    ``due_ms`` and ``previous`` have an element for each new message: its due time, and the offset
    of the message that it replaces or gives way to, -1 if none. ``replaced`` are the entries of
    earlier messages that are replaced. ``cancelled`` are earlier messages that are cancelled
    already, but not durably, and must become so together with the new messages. ``dropped`` are the
    new messages that are cancelled at once. ``keys`` are the entries of the others.
    """

    due_ms: Int64s
    previous: Int64s
    replaced: ReplaceTable
    cancelled: Int64s
    dropped: Int64s
    keys: ReplaceTable


class ReplaceKeys(KeyStore[ReplaceTable]):
    """The replace keys of one topic.

    Args:
      shared, ordered, amendments: those of the topic, which changes them.
      doubtful_below: as ``Topic.doubtful_below``.
    """

    __slots__ = ("_amendments", "_ordered", "_purge_at", "_shared", "doubtful_below", "unchecked")

    def __init__(
        self,
        budget: KeyBudget,
        shared: Mapping[str, SharedSubscription],
        ordered: Mapping[str, OrderedSubscription],
        amendments: Amendments,
        doubtful_below: int,
    ) -> None:
        super().__init__(ReplaceTable, budget)
        self._shared = shared
        self._ordered = ordered
        self._amendments = amendments
        self.doubtful_below = doubtful_below
        self._purge_at = _SPARE
        # Whether an earlier broker stored entries, whose messages the log may have deleted since.
        self.unchecked = False

    def load(self, table: ReplaceTable) -> None:
        super().load(table)
        self.unchecked = True

    def recover(self, table: ReplaceTable) -> None:
        super().recover(table)
        self.unchecked = True

    def check_room(self, count: int, now_ms: int) -> None:
        """Check that ``count`` more messages with replace keys may be stored.

        The check leaves out the messages that wait for commit, whose memory has a bound of its own.

        Raises:
          Busy: if the limit of entries is reached now.
          LimitExceeded: if the batch alone has more than all topics may have together.
        """
        budget = self._budget
        if count > budget.limit:
            raise LimitExceeded(
                f"{count} replace keys exceed the limit of {budget.limit} for all topics together; "
                "send smaller batches"
            )
        if budget.used + count > budget.limit:
            self.purge(now_ms)
        if budget.used + count > budget.limit:
            raise Busy(
                f"the limit of {budget.limit} pending messages with replace keys is reached; "
                "publish again when some of them were delivered"
            )

    def store(self, table: ReplaceTable, now_ms: int) -> None:
        """Store the entries of messages that are now durable."""
        self._budget.used += len(table.offsets)
        self.add(table)
        if len(self) > self._purge_at:
            self.purge(now_ms)

    # -- deciding --------------------------------------------------------------------

    def decide(self, new: KeyedMessages, now_ms: int) -> Decision:
        """Decide what happens to new messages.

        They take effect in the order of their offsets. Each one is pending for those after it.

        Complexity: O(n log n) in numpy, and a search in each run of entries.

        Args:
          new: the messages, each of which has a key.
          now_ms: when the broker accepts them.
        """
        _, first, key_of = np.unique(
            new.digests.view("S16"), return_index=True, return_inverse=True
        )
        digests = new.digests[first]
        known = ReplaceTable(digests, *self.find_rows(digests))
        known = known._replace(due_ms=self._amendments.moves.current(known.offsets, known.due_ms))
        there = known.offsets >= 0
        pending = np.zeros(len(digests), bool)
        pending[there] = self.pending(known.take(there), now_ms)
        holder = np.where(pending, known.offsets, -1)
        since_ms = np.where(pending, known.since_ms, now_ms)[key_of]

        # Look at the messages key by key, those of a key in the order of their offsets.
        order = np.argsort(key_of, kind="stable")
        key, rows = key_of[order], np.arange(len(order))
        begins = np.searchsorted(key, key)  # the row at which the messages of the same key begin
        takes = (new.modes[order] != FIRST) | ((rows == begins) & (holder[key] < 0))
        last = np.maximum.accumulate(np.where(takes, rows, -1))
        before = np.concatenate([[-1], last[:-1]])
        offsets = new.offsets[order]
        ahead = np.where(before >= begins, offsets[before], holder[key])
        previous = np.empty(len(order), np.int64)
        previous[order] = ahead

        due_ms = new.due_ms.copy()
        debounced = new.modes >= 0
        latest_ms = since_ms[debounced] + new.modes[debounced]
        due_ms[debounced] = np.maximum(np.minimum(due_ms[debounced], latest_ms), now_ms)

        ends = np.append(begins[1:] != begins[:-1], True)
        wins = np.zeros(len(order), bool)
        wins[last[ends & (last >= begins)]] = True  # the last of a key that took its place
        at = np.sort(order[wins])
        keys = ReplaceTable(
            new.digests[at], new.offsets[at], due_ms[at], since_ms[at], new.traits[at]
        )
        gone = np.zeros(len(digests), bool)
        gone[key[takes]] = True
        dropped = np.sort(offsets[~wins])
        undurable = known.offsets[there & ~pending]
        undurable = undurable[self._cancelled_before(undurable)]
        return Decision(due_ms, previous, known.take(pending & gone), undurable, dropped, keys)

    def pending(self, entries: ReplaceTable, now_ms: int) -> Bools:
        """Return which messages are pending; bool[n].

        If the topic has no subscription, messages are pending until they are due.

        Args:
          entries: their entries, with their current due times.
        """
        offsets, due_ms = entries.offsets, entries.due_ms
        subscriptions = self._subscriptions()
        wanted = np.zeros(len(offsets), bool) if subscriptions else due_ms > now_ms
        for one in subscriptions:
            wanted |= one.covers(due_ms, offsets)
        wanted &= ~self._amendments.cancelled.contains(offsets)
        for one in subscriptions:
            wanted &= ~one.was_handed(offsets)
            if one.doubtful_until_ms:
                # A message was published when its chain began, or later. If a subscription may have
                # had a message of a chain, the chain has ended there.
                may_have_had = one.may_have_had(Rows.fresh(due_ms, offsets), entries.since_ms)
                wanted &= ~(may_have_had & (offsets < self.doubtful_below))
        return wanted

    def _cancelled_before(self, offsets: Int64s) -> Bools:
        """Return which messages are cancelled, not durably, and were never delivered; bool[n].

        If one of them was still pending after a crash, it would be beside the new message.
        """
        waiting = self._amendments.cancelled.undurable.contains(offsets)
        for one in self._subscriptions():
            waiting &= ~one.was_handed(offsets)
        return waiting

    def _subscriptions(self) -> list[Subscription]:
        return [*self._shared.values(), *self._ordered.values()]

    # -- forgetting --------------------------------------------------------------------

    def purge(self, now_ms: int) -> None:
        """Remove stale entries, and entries of keys that have a later one.

        Call this before a subscription is deleted or begins again, because messages that it got
        would then count as pending.
        """
        if not self._runs:
            return
        # All are looked up first: removing a later entry must not reveal an earlier one.
        wanted = {id(run): self._wanted(run, now_ms) for run in self._runs}
        self.keep(lambda run: wanted[id(run)])
        self._purge_at = 2 * len(self) + _SPARE

    def _wanted(self, run: Run, now_ms: int) -> Bools:
        entries = ReplaceTable(run.digests, *run.numbers)
        due_ms = self._amendments.moves.current(entries.offsets, entries.due_ms)
        wanted = self.pending(entries._replace(due_ms=due_ms), now_ms)
        if wanted.any():
            wanted[wanted] = self.find_rows(run.digests[wanted])[0] == run.offsets[wanted]
        return wanted

    def check(self, begin: int) -> None:
        """Remove entries whose messages the log does not have any more.

        Args:
          begin: the log's first offset.
        """
        moves = self._amendments.moves
        self.keep(lambda run: (run.offsets >= begin) | moves.contains(run.offsets))
        self.unchecked = False
