"""Groups of a topic, acknowledged in any order, compared with plain sets (Q10)."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.log.amendments import Amendments
from escapement.broker.topic.groups import Groups
from escapement.errors import GroupClosed, LimitExceeded
from escapement.group_names import Member
from escapement.message import Int64s
from escapement.storage.inbox.event_group import Completion
from escapement.storage.offsets import CHUNK_SIZE, OffsetSet

# Members in several chunks: full, partial and empty ones occur.
OFFSETS = [0, 1, 2, 5, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 7, 3 * CHUNK_SIZE + 1]


def column(offsets: list[int]) -> Int64s:
    return np.array(offsets, np.int64)


def completion(group: str = "g", subscription_id: int = 1) -> Completion:
    return Completion(
        subscription_id * 1000 + sum(group.encode()),
        7,
        group,
        subscription_id,
        "s",
        "to",
        b"",
        0,
        None,
    )


@dataclass
class Subscription:
    """A stub with the attributes that groups use."""

    id: int = 1
    acked: OffsetSet = field(default_factory=OffsetSet)
    held: OffsetSet = field(default_factory=OffsetSet)

    def kept(self) -> OffsetSet:
        return self.held

    @property
    def record(self) -> Any:
        return SimpleNamespace(id=self.id)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ack", "cancel", "hold"]),
        st.lists(st.sampled_from(OFFSETS), min_size=1, max_size=4),
    ),
    max_size=12,
)


@given(
    st.dictionaries(st.sampled_from(OFFSETS), st.sampled_from("gh")),
    st.integers(0, 12),
    STEPS,
)
def test_each_group_completes_once_when_all_its_messages_are_done(
    membership: dict[int, str], armed_after: int, steps: list[tuple[str, list[int]]]
) -> None:
    """Q10: acknowledged, or cancelled and not held, before or after the completion is armed."""
    groups, one, amendments = Groups(), Subscription(), Amendments()
    subscription: Any = one
    acked: set[int] = set()
    cancelled: set[int] = set()
    held: set[int] = set()
    for group in "gh":
        members = [offset for offset, name in sorted(membership.items()) if name == group]
        groups.join([Member(group, column(members))])
        groups.enter(completion(group))
    complete: list[str] = []

    def open_of(group: str) -> set[int]:
        members = {offset for offset, name in membership.items() if name == group}
        return members - acked - (cancelled - held)

    def arm() -> None:
        for group in "gh":
            assert groups.remaining(completion(group), subscription, amendments) == len(
                open_of(group)
            )
            if groups.arm(completion(group), subscription, amendments):
                complete.append(group)

    for number, (step, offsets) in enumerate(steps):
        if number == armed_after:
            arm()
        if step == "hold":  # these are delivered, except cancelled messages
            fresh = set(offsets) - acked - cancelled
            held |= fresh
            one.held.add(column(sorted(fresh)))
            continue
        if step == "ack":
            acked |= set(offsets)
            held -= acked
            one.acked.add(column(offsets))
            one.held.discard(column(offsets))
        else:
            amendments.cancelled.take(column(sorted(set(offsets) - cancelled)))
            cancelled |= set(offsets)
        done = groups.done(subscription, amendments, column(offsets))
        complete += [found.group for found in done]
        if number >= armed_after:
            assert sorted(complete) == [group for group in "gh" if not open_of(group)]
    if len(steps) <= armed_after:
        assert complete == []
        arm()
    assert sorted(complete) == [group for group in "gh" if not open_of(group)]
    assert groups.watched == (len(complete) < 2)


class Counting(Groups):
    """Groups that count how often they search a group."""

    searches = 0

    def _left(self, *arguments: Any) -> Any:
        self.searches += 1
        return super()._left(*arguments)


def test_group_is_searched_again_only_when_its_watched_message_is_done() -> None:
    """Q10: messages done in any order lead to few searches of the group."""
    groups, one = Counting(), Subscription()
    subscription: Any = one
    count = 3 * CHUNK_SIZE
    groups.join([Member("g", np.arange(count))])
    groups.enter(completion())
    assert not groups.arm(completion(), subscription, Amendments())
    found: list[Completion] = []
    order = np.random.default_rng(0).permutation(count)
    for low in range(0, count, 4096):
        offsets = order[low : low + 4096]
        one.acked.add(offsets)
        found += groups.done(subscription, Amendments(), offsets)
    assert found == [completion()]
    assert groups.searches < 60


def test_groups_are_bounded_and_completed_ones_accept_no_messages() -> None:
    """Invariant 9: a refused group leaves nothing behind."""
    groups = Groups()
    some = [Member("a", column([0])), Member("b", column([1]))]
    groups.admit(some, 2)
    with pytest.raises(LimitExceeded):
        groups.admit([Member("c", column([2]))], 2)
    groups.refuse(some)
    assert len(groups) == 0
    groups.admit([Member("c", column([2]))], 2)
    groups.join([Member("c", column([2]))])
    groups.enter(completion("c"))
    with pytest.raises(GroupClosed):
        groups.admit([Member("c", column([3]))], 2)
    groups.refuse([Member("c", column([3]))])
    assert groups.names() == ["c"]
    groups.forget("c")
    assert len(groups) == 0
    assert groups.take_forgotten() == {"c"}
