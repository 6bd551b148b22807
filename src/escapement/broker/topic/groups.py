"""The groups of a topic: their messages, and their completion by subscriptions (Q10).

A group begins with the first message that names it, and is *open*: further messages may join. A
*group completion* names a subscription and has a *follow-up*, an inbox entry that becomes a message
of some topic. It closes the group: no further message can join. A completion is *complete* once its
subscription is done with all messages of the group. It has *fired* once its follow-up is stored. A
subscription is *done with* the messages that it has acknowledged, and with cancelled messages that
it does not hold. Only a seek reverts this.

The broker does not count the messages that are done. It *watches* one message for each completion
that has not fired: the highest message of the group that is not done. When that message is done, it
searches for the next lower one. So an acknowledgement costs one lookup if its subscription has such
completions, and nothing otherwise. A completion needs no memory per message besides the group's set
of offsets.

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
from escapement.group_names import Member
from escapement.message import Int64s
from escapement.storage.inbox.event_group import Completion
from escapement.storage.offsets import OffsetSet
from escapement.storage.state.checkpoint import MemberRow


class _Watch(NamedTuple):
    """The watched messages of one subscription: one for each completion that has not fired."""

    offsets: OffsetSet
    completions: dict[int, Completion]  # by the offset of the watched message


class Groups:
    """The groups of one topic."""

    __slots__ = ("_completion", "_forgotten", "_watches", "completions", "members")

    def __init__(self) -> None:
        self.members: dict[str, OffsetSet] = {}
        self.completions: dict[str, list[Completion]] = {}  # by closed group, in order of creation
        self._completion: set[str] = set()  # groups whose first completion is being made durable
        self._watches: dict[int, _Watch] = {}  # by subscription id
        self._forgotten: set[str] = set()  # groups removed since the last checkpoint

    def __len__(self) -> int:
        return len(self.members.keys() | self.completions.keys())

    def names(self) -> list[str]:
        """Return the sorted names of all groups, except open groups that have no stored message."""
        joined = {group for group, offsets in self.members.items() if len(offsets)}
        return sorted(joined | self.completions.keys())

    # -- joining ---------------------------------------------------------------

    def admit(self, members: Sequence[Member], limit: int) -> None:
        """Check that messages may join their groups, and create groups that do not exist.

        ``join`` must follow when the messages are stored, or ``refuse`` if they are not.

        Raises:
          GroupClosed: if a group is closed.
          Busy: if a group is being closed.
          LimitExceeded: if the topic would have more than ``limit`` groups.
        """
        for group, _ in members:
            if group in self.completions:
                raise GroupClosed(
                    f"the group {group} is closed and accepts no more messages; "
                    "this batch was not stored"
                )
            if group in self._completion:
                raise Busy(f"the group {group} is being closed; publish again")
        self._check_room([group for group, _ in members], limit)
        for group, _ in members:
            self.members.setdefault(group, OffsetSet())

    def _check_room(self, groups: Iterable[str], limit: int) -> None:
        new = sum(group not in self.members and group not in self.completions for group in groups)
        if new and len(self) + new > limit:
            raise LimitExceeded(
                f"the topic has {len(self)} groups, and the limit is {limit}; delete groups, or "
                "wait until completed ones are forgotten"
            )

    def join(self, members: Iterable[Member]) -> None:
        """Add messages that are now stored to their groups."""
        for group, offsets in members:
            self.members.setdefault(group, OffsetSet()).add(offsets)

    def refuse(self, members: Iterable[Member]) -> None:
        """Remove the groups that ``admit`` created: their messages were not stored."""
        for group, _ in members:
            if not self.members.get(group, True):
                del self.members[group]

    # -- completions -----------------------------------------------------------

    def begin_completion(self, group: str, limit: int) -> bool:
        """Note that a completion is being stored; return whether it is the first of its group.

        If it is, the group is being closed, and ``end_completion`` must follow.

        Raises:
          LimitExceeded: if the topic would have more than ``limit`` groups.
        """
        self._check_room([group], limit)
        if group in self.completions or group in self._completion:
            return False
        self._completion.add(group)
        return True

    def end_completion(self, group: str) -> None:
        """Note that storing the first completion of a group succeeded or failed."""
        self._completion.discard(group)

    def enter(self, completion: Completion) -> None:
        """Add a completion that is durable, and so close its group."""
        self.completions.setdefault(completion.group, []).append(completion)

    def find(self, group: str, subscription_id: int) -> Completion | None:
        """Return the completion of a group for a subscription, if there is one."""
        found = (c for c in self.completions.get(group, ()) if c.subscription_id == subscription_id)
        return next(found, None)

    def fired(self, completion: Completion, now_ms: int) -> None:
        """Mark a completion as fired: its follow-up is durably stored."""
        self._change(completion, fired_at_ms=now_ms)

    def follow_seek(self, old_id: int, new_id: int) -> None:
        """Assign a subscription's completions to the subscription that a seek puts in its place.

        The caller must ``arm`` them again.
        """
        self._watches.pop(old_id, None)
        for completions in self.completions.values():
            for completion in list(completions):
                if completion.subscription_id == old_id:
                    self._change(completion, subscription_id=new_id)

    def _change(self, completion: Completion, **changes: int) -> None:
        # Compare ids, because a seek or a firing may have replaced the ``Completion`` meanwhile.
        completions = self.completions.get(completion.group, [])
        completions[:] = [
            replace(one, **changes) if one.id == completion.id else one  # type: ignore[arg-type]
            for one in completions
        ]

    def forget_members(self, group: str) -> None:
        """Remove a group's messages; messages that join later form a new group.

        Recovery calls this when the journal says that the group was deleted.
        """
        self.members.pop(group, None)
        self._forgotten.add(group)

    def forget(self, group: str) -> None:
        """Remove a group with its completions; its removal from the database is durable."""
        self.forget_members(group)
        for completion in self.completions.pop(group, []):
            watch = self._watches.get(completion.subscription_id)
            if watch is not None:
                for offset, other in list(watch.completions.items()):
                    if other.id == completion.id:
                        self._unwatch(completion.subscription_id, offset)

    def finished(self, before_ms: int, living: Container[int]) -> list[str]:
        """Return the closed groups that can be forgotten.

        Each completion of such a group has fired by ``before_ms``, or was created by then and its
        subscription is gone.

        Args:
          living: the ids of the subscriptions that exist.
        """
        return [
            group
            for group, completions in self.completions.items()
            if all(
                completion.closed_at_ms <= before_ms and completion.subscription_id not in living
                if completion.fired_at_ms is None
                else completion.fired_at_ms <= before_ms
                for completion in completions
            )
        ]

    def leave(self, subscription_id: int) -> None:
        """Stop watching messages for a deleted subscription, whose completions will never fire."""
        self._watches.pop(subscription_id, None)

    # -- watching --------------------------------------------------------------

    @property
    def watched(self) -> bool:
        """Whether any message is watched."""
        return bool(self._watches)

    def waiting(self) -> list[Completion]:
        """Return the completions that have not fired."""
        return [one for all in self.completions.values() for one in all if one.fired_at_ms is None]

    def is_waiting(self, completion: Completion) -> bool:
        """Return whether a completion still exists, unchanged, and has not fired."""
        return (
            completion in self.completions.get(completion.group, ())
            and completion.fired_at_ms is None
        )

    def remaining(
        self, completion: Completion, subscription: Subscription, amendments: Amendments
    ) -> int:
        """Return how many messages of the group the subscription is not done with.

        O(size of the group).
        """
        return sum(len(left) for _, left in self.left(completion, subscription, amendments, None))

    def arm(
        self, completion: Completion, subscription: Subscription, amendments: Amendments
    ) -> bool:
        """Begin to watch a message for a completion; return whether it is complete already."""
        return self._watch_below(completion, subscription, amendments, None)

    def done(
        self, subscription: Subscription, amendments: Amendments, offsets: Int64s
    ) -> list[Completion]:
        """Return the completions that are complete now that the subscription is done with messages.

        Args:
          offsets: the messages with which the subscription is newly done; int64[n].
        """
        id = subscription.record.id
        watch = self._watches.get(id)
        if watch is None:
            return []
        complete = []
        for offset in np.unique(offsets[watch.offsets.contains(offsets)]).tolist():
            completion = watch.completions[offset]
            self._unwatch(id, offset)
            if self._watch_below(completion, subscription, amendments, offset):
                complete.append(completion)
        return complete

    def _watch_below(
        self,
        completion: Completion,
        subscription: Subscription,
        amendments: Amendments,
        highest: int | None,
    ) -> bool:
        """Watch the highest message that is not done; return True if there is none.

        Args:
          highest: no message past this offset is left; None if that is unknown.
        """
        for base, left in self.left(completion, subscription, amendments, highest):
            watch = self._watches.setdefault(completion.subscription_id, _Watch(OffsetSet(), {}))
            offset = base + left.max()
            watch.offsets.add_one(offset)
            watch.completions[offset] = completion
            return False
        return True

    def _unwatch(self, subscription_id: int, offset: int) -> None:
        watch = self._watches[subscription_id]
        watch.offsets.discard_one(offset)
        del watch.completions[offset]
        if not watch.completions:
            del self._watches[subscription_id]

    def left(
        self,
        completion: Completion,
        subscription: Subscription,
        amendments: Amendments,
        highest: int | None = None,
    ) -> Iterator[tuple[int, BitMap]]:
        """Return the members of a group that the subscription has not finished.

        The highest chunk comes first.

        Messages that are being replaced are among them, because that may be undone.

        Args:
          highest: no message past this offset is left; None if that is unknown.

        Returns:
          For each chunk with such messages, its first offset, and a bitmap of the remainders.
        """
        members = self.members.get(completion.group)
        if members is None:
            return iter(())
        cancelled: OffsetSet = amendments.cancelled
        if len(amendments.replacing):
            cancelled = cancelled.copy()
            cancelled.difference_update(amendments.replacing)
        kept = subscription.kept() if len(cancelled) else subscription.held
        return members.left(subscription.acked, cancelled, kept, highest)

    # -- what checkpoints write, and a start reads -------------------------------

    def load(self, members: Iterable[MemberRow], completions: Iterable[Completion]) -> None:
        """Add the members and completions of groups, as read from the database."""
        for row in members:
            self.members.setdefault(row.group, OffsetSet()).load_chunk(row.chunk, row.data)
        for completion in completions:
            self.enter(completion)

    def take_forgotten(self) -> set[str]:
        """Return the names of the groups that were removed since the last call."""
        forgotten, self._forgotten = self._forgotten, set()
        return forgotten

    def dirty_rows(self, topic_id: int) -> list[MemberRow]:
        """Return the member rows that have changed since the last call, for a checkpoint."""
        rows = []
        for group, offsets in self.members.items():
            for chunk, data in offsets.dirty_chunks().items():
                rows.append(MemberRow(topic_id, group, chunk, data))
            offsets.mark_clean()
        return rows
