"""The groups of a topic: who belongs to them, and which subscriptions are done with them (Q10).

A group comes into being with the first message that names it, and is *open*: what names it
joins it. A *closing* names a subscription, and closes the group: nothing joins it any more,
and once the subscription is done with all of its messages, the closing is *complete* and its
follow-up may fire. *Done with* is what the subscription has acknowledged, and what was
cancelled and is not in its hands; it never becomes undone, but by a seek.

Completeness is not counted but *watched*: of each closing that waits the highest message is
known that is not done. Nothing is looked at again until that very message is; then the next
one is sought, downwards. So acknowledgements cost one look-up for each of them, where their
subscription has closings that wait, and nothing at all where it has none; and a closing needs
no memory by its messages but the group's own set.

Pure: no clock, no I/O. A topic without groups costs nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from pyroaring import BitMap

from escapement.broker.log.amendments import Amendments
from escapement.broker.subscription.subscription import Subscription
from escapement.errors import Busy, GroupClosed, LimitExceeded
from escapement.groupnames import Member
from escapement.message import Int64s
from escapement.storage.checkpoint import MemberRow
from escapement.storage.letters.eventgroup import Closing
from escapement.storage.offsets import OffsetSet


class _Watch(NamedTuple):
    """What one subscription is still to do: for each closing that waits one message."""

    offsets: OffsetSet
    closings: dict[int, Closing]  # by that message's offset


class Groups:
    """See the module's docstring."""

    __slots__ = ("_closing", "_forgotten", "_watches", "closings", "members")

    def __init__(self) -> None:
        self.members: dict[str, OffsetSet] = {}
        self.closings: dict[str, list[Closing]] = {}  # of each closed group, in order
        self._closing: set[str] = set()  # groups whose first closing is being made durable
        self._watches: dict[int, _Watch] = {}  # by subscription id
        self._forgotten: set[str] = set()  # since the last checkpoint

    def __len__(self) -> int:
        return len(self.members.keys() | self.closings.keys())

    def names(self) -> list[str]:
        """The groups there are, in order; not those that nothing has joined yet."""
        joined = {group for group, offsets in self.members.items() if len(offsets)}
        return sorted(joined | self.closings.keys())

    # -- joining ---------------------------------------------------------------

    def admit(self, members: Sequence[Member], limit: int) -> None:
        """Messages that belong to these groups are about to be stored; ``join`` follows.

        Raises:
          GroupClosed: if one of them takes no more; nothing happened.
          Busy: if one of them is being closed.
          LimitExceeded: if there would be more than ``limit`` groups.
        """
        for group, _ in members:
            if group in self.closings:
                raise GroupClosed(
                    f"the group {group} is closed: nothing joins it any more, and nothing of "
                    "this batch was stored"
                )
            if group in self._closing:
                raise Busy(f"the group {group} is being closed")
        self._check_room([group for group, _ in members], limit)
        for group, _ in members:
            self.members.setdefault(group, OffsetSet())

    def _check_room(self, groups: Iterable[str], limit: int) -> None:
        new = sum(group not in self.members and group not in self.closings for group in groups)
        if new and len(self) + new > limit:
            raise LimitExceeded(
                f"the topic has {len(self)} groups, and no more than {limit}: those that are "
                "closed and done are forgotten in time, others when they are deleted"
            )

    def join(self, members: Iterable[Member]) -> None:
        """These are stored."""
        for group, offsets in members:
            self.members.setdefault(group, OffsetSet()).add(offsets)

    def refuse(self, members: Iterable[Member]) -> None:
        """What was admitted is not stored after all."""
        for group, _ in members:
            if not self.members.get(group, True):
                del self.members[group]

    # -- closing ---------------------------------------------------------------

    def begin_closing(self, group: str, limit: int) -> bool:
        """A closing is being made durable; whether nothing joins the group from now on only.

        ``end_closing`` follows if so. Raises ``LimitExceeded``.
        """
        self._check_room([group], limit)
        if group in self.closings or group in self._closing:
            return False
        self._closing.add(group)
        return True

    def end_closing(self, group: str) -> None:
        """It is durable, and entered, or it is not."""
        self._closing.discard(group)

    def enter(self, closing: Closing) -> None:
        """A closing is durable."""
        self.closings.setdefault(closing.group, []).append(closing)

    def find(self, group: str, subscription_id: int) -> Closing | None:
        """The closing of a group for a subscription."""
        found = (c for c in self.closings.get(group, ()) if c.subscription_id == subscription_id)
        return next(found, None)

    def fired(self, closing: Closing, now_ms: int) -> None:
        """The follow-up is on its way, durably."""
        self._change(closing, fired_at_ms=now_ms)

    def follow_seek(self, old_id: int, new_id: int) -> None:
        """A subscription was put in another's place: its closings are to be armed again."""
        self._watches.pop(old_id, None)
        for closings in self.closings.values():
            for closing in list(closings):
                if closing.subscription_id == old_id:
                    self._change(closing, subscription_id=new_id)

    def _change(self, closing: Closing, **changes: int) -> None:
        # Not the one given: of a seek and a firing either may come first.
        closings = self.closings.get(closing.group, [])
        closings[:] = [
            replace(one, **changes) if one.id == closing.id else one  # type: ignore[arg-type]
            for one in closings
        ]

    def forget_members(self, group: str) -> None:
        """At recovery: a group ceased to be; what names it from here on is another."""
        self.members.pop(group, None)
        self._forgotten.add(group)

    def forget(self, group: str) -> None:
        """A group ceases to be, durably; its name is free."""
        self.forget_members(group)
        for closing in self.closings.pop(group, []):
            watch = self._watches.get(closing.subscription_id)
            if watch is not None:
                for offset, other in list(watch.closings.items()):
                    if other.id == closing.id:
                        self._unwatch(closing.subscription_id, offset)

    def finished(self, before_ms: int, living: Container[int]) -> list[str]:
        """The closed groups of which nothing is to be expected, and was not since ``before_ms``.

        Args:
          living: the ids of the subscriptions that there are.
        """
        return [
            group
            for group, closings in self.closings.items()
            if all(
                closing.closed_at_ms <= before_ms and closing.subscription_id not in living
                if closing.fired_at_ms is None
                else closing.fired_at_ms <= before_ms
                for closing in closings
            )
        ]

    def leave(self, subscription_id: int) -> None:
        """A subscription was deleted: what waits for it waits in vain."""
        self._watches.pop(subscription_id, None)

    # -- watching --------------------------------------------------------------

    @property
    def watched(self) -> bool:
        """Whether anything is watched."""
        return bool(self._watches)

    def waiting(self) -> list[Closing]:
        """The closings that have not fired."""
        return [one for all in self.closings.values() for one in all if one.fired_at_ms is None]

    def is_waiting(self, closing: Closing) -> bool:
        """Whether it is still there as it is, and has not fired."""
        return closing in self.closings.get(closing.group, ()) and closing.fired_at_ms is None

    def remaining(
        self, closing: Closing, subscription: Subscription, amendments: Amendments
    ) -> int:
        """How many of a closing's messages are not done. O(size of the group)."""
        return sum(len(left) for _, left in self._left(closing, subscription, amendments, None))

    def arm(self, closing: Closing, subscription: Subscription, amendments: Amendments) -> bool:
        """Watch a closing that waits; whether it is complete already."""
        return self._watch_below(closing, subscription, amendments, None)

    def done(
        self, subscription: Subscription, amendments: Amendments, offsets: Int64s
    ) -> list[Closing]:
        """A subscription is done with some of these; the closings that this completes."""
        id = subscription.record.id
        watch = self._watches.get(id)
        if watch is None:
            return []
        complete = []
        for offset in np.unique(offsets[watch.offsets.contains(offsets)]).tolist():
            closing = watch.closings[offset]
            self._unwatch(id, offset)
            if self._watch_below(closing, subscription, amendments, offset):
                complete.append(closing)
        return complete

    def _watch_below(
        self,
        closing: Closing,
        subscription: Subscription,
        amendments: Amendments,
        highest: int | None,
    ) -> bool:
        """Watch the highest message that is not done, up to ``highest``; or none is."""
        for base, left in self._left(closing, subscription, amendments, highest):
            watch = self._watches.setdefault(closing.subscription_id, _Watch(OffsetSet(), {}))
            offset = base + left.max()
            watch.offsets.add_one(offset)
            watch.closings[offset] = closing
            return False
        return True

    def _unwatch(self, subscription_id: int, offset: int) -> None:
        watch = self._watches[subscription_id]
        watch.offsets.discard_one(offset)
        del watch.closings[offset]
        if not watch.closings:
            del self._watches[subscription_id]

    def _left(
        self,
        closing: Closing,
        subscription: Subscription,
        amendments: Amendments,
        highest: int | None,
    ) -> Iterator[tuple[int, BitMap]]:
        members = self.members.get(closing.group)
        if members is None:
            return iter(())
        kept = subscription.kept() if len(amendments.cancelled) else subscription.held
        return members.left(subscription.acked, amendments.cancelled, kept, highest)

    # -- what checkpoints write, and a start reads -------------------------------

    def load(self, members: Iterable[MemberRow], closings: Iterable[Closing]) -> None:
        """Take what the database has."""
        for row in members:
            self.members.setdefault(row.group, OffsetSet()).load_chunk(row.chunk, row.data)
        for closing in closings:
            self.enter(closing)

    def take_forgotten(self) -> set[str]:
        """The groups forgotten since this was last asked."""
        forgotten, self._forgotten = self._forgotten, set()
        return forgotten

    def dirty_rows(self, topic_id: int) -> list[MemberRow]:
        """The rows that have changed since this was last asked."""
        rows = []
        for group, offsets in self.members.items():
            for chunk, data in offsets.dirty_chunks().items():
                rows.append(MemberRow(topic_id, group, chunk, data))
            offsets.mark_clean()
        return rows
