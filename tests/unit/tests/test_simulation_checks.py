"""The checks of the simulation's features find each broken promise, and nothing in a clean history.

Each test makes up a small history. Its subscription is named like that of the feature.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from escapement import slot_of
from escapement.push.signing import signature
from histories.checker import violations
from histories.history import (
    NEVER_MS,
    Arrival,
    Consumer,
    History,
    Message,
    Seek,
    Sent,
    Way,
    payload_of,
)
from simulation.checks.auditing import DONE, Action, AuditCheck
from simulation.checks.bulk import BulkCheck
from simulation.checks.check import Check
from simulation.checks.claiming import ALL, AUTO, Claim, ClaimCheck, Stay
from simulation.checks.delaying import DelayCheck, Delays
from simulation.checks.deleting import DeleteCheck
from simulation.checks.expiring import ExpiryCheck
from simulation.checks.grouping import Group, GroupCheck
from simulation.checks.guarding import Granted, GuardCheck, Request, TokenLife
from simulation.checks.limiting import LimitCheck, Limits
from simulation.checks.posting import PostCheck
from simulation.checks.push_tries import (
    ACK,
    BACK_OFF,
    NACK,
    REJECT,
    Deliveries,
    Listing,
    Post,
    Pusher,
    Try,
)
from simulation.checks.pushing import PushCheck
from simulation.checks.quotas import Quota, QuotaCheck
from simulation.checks.redriving import BulkRedriveCheck
from simulation.checks.replacing import FIRST, LATEST, ReplaceCheck, Send
from simulation.checks.scheduling import Change, ChangedSchedule, Occurrences, ScheduleCheck
from simulation.checks.seeking import Pause, SeekCheck
from simulation.checks.terms import Terms

T0_MS = 1_000_000
HOUR_MS = 3_600_000
SKEW_MS = 1_000


@dataclass(eq=False)
class Cable:
    ended_s: float | None = None


class Story:
    """A history of one topic with one subscription, which a test tells step by step.

    It is the clock of the history, too.
    """

    def __init__(self) -> None:
        self.at_ms = T0_MS
        self.history = History(self)
        self.history.topics = {"t": ["s"]}
        self.history.kinds = {"s": "shared"}
        self.history.sending_s = 2.0
        self.history.expiry_s = 1800.0
        self.host = "host"  # which sends what is delivered
        self.terms = Terms([0.0], ["host"])

    def now_ms(self) -> int:
        return self.at_ms

    def now_s(self) -> float:
        return (self.at_ms - T0_MS) / 1000

    def wait(self, hours: float = 1.0) -> None:
        self.at_ms += round(hours * HOUR_MS)

    def send(self, offset: int, due_ms: int = 0) -> Message:
        """Store a message; a negative offset: no client knows whether it is stored."""
        message = self.history.publish("t", "", due_ms or self.at_ms)
        if offset >= 0:
            self.history.confirm(message, offset)
        return message

    def deliver(
        self,
        message: Message,
        offset: int = -1,
        *,
        acks: bool = True,
        due_ms: int | None = None,
        stay: Stay | None = None,
    ) -> Arrival:
        """Deliver a message now. The broker names a due time."""
        sent = Sent(self.now_s(), self.at_ms, len(self.history.arrivals))
        arrival = Arrival(
            "s",
            message.number,
            message.offset if offset < 0 else offset,
            message.earliest_ms if due_ms is None else due_ms,
            message.key,
            False,
            self.now_s(),
            self.at_ms,
            Way(Cable(), self.host, sent),
            Consumer("s") if stay is None or stay.consumer is None else stay.consumer,
        )
        self.history.arrive(arrival)
        if acks:
            self.ack(arrival)
        return arrival

    def ack(self, arrival: Arrival) -> None:
        arrival.acked_s = self.now_s()
        self.history.ack_sent.add(("s", arrival.offset))

    def found(self, check: Check) -> list[str]:
        """Return what the rules and a check find in the whole history."""
        found = [*violations(self.history, drained=True), *check.violations(self.history)]
        return [*found, *check.unfinished(self.history)]


# -- replace keys -------------------------------------------------------------------------


def replaced(story: Story, mode: str = LATEST) -> tuple[ReplaceCheck, Message, Send]:
    """Store message 0, which is due in a day, and call a send of message 1 with the same key."""
    check = ReplaceCheck("t", SKEW_MS)
    first = Send(story.send(0, story.at_ms + 24 * HOUR_MS), "k", LATEST, story.at_ms)
    check.called([first])
    check.answered(first, story.at_ms, -1, -1)
    story.wait()
    second = Send(story.send(-1, story.at_ms + 30 * HOUR_MS), "k", mode, story.at_ms)
    check.called([second])
    return check, first.message, second


def test_replaced_message_that_comes_is_found() -> None:
    """B11: a receipt that names a replaced message is final."""
    story = Story()
    check, old, new = replaced(story)
    check.answered(new, story.at_ms, 0, -1)
    story.history.confirm(new.message, 1)
    story.wait(40)
    story.deliver(new.message)
    assert story.found(check) == []
    story.deliver(old)
    assert [line[:14] for line in story.found(check)] == ["cancelled (10)"]


def test_winner_that_does_not_come_is_found() -> None:
    """B11: the message that was kept comes; the one that gave way does not."""
    story = Story()
    check, old, new = replaced(story, FIRST)
    check.answered(new, story.at_ms, -1, 0)
    story.wait(40)
    assert [line[:33] for line in story.found(check)] == ["lost (1, 4): message 0 (offset 0)"]
    story.deliver(old)
    assert story.found(check) == []


def test_one_of_two_messages_is_kept_although_the_receipt_was_lost() -> None:
    """B11: the receipt of ``first`` was lost, so either message may win, but one does."""
    story = Story()
    check, _, new = replaced(story, FIRST)
    story.history.confirm(new.message, 1)
    check.stored_before(new, story.at_ms)
    story.wait(40)
    assert story.found(check) == ["none of the messages [0, 1] was kept for s"]
    story.deliver(new.message)
    assert story.found(check) == []


def test_receipt_that_overlooks_the_pending_message_is_found() -> None:
    """B11: a pending message is replaced, or kept."""
    story = Story()
    check, old, new = replaced(story)
    check.answered(new, story.at_ms, -1, -1)
    story.wait(40)
    for message, offset in ((old, 0), (new.message, 1)):
        story.history.confirm(message, offset)
        story.deliver(message)
    assert story.found(check) == ["replace: message 1 left the pending message 0 of k in its place"]


def test_debounced_message_that_is_put_off_too_long_is_found() -> None:
    """B11: a debounce has a maximum wait, which counts from the first message of the chain."""
    story = Story()
    check, _, new = replaced(story)
    new.wait_ms = 2 * HOUR_MS
    check.answered(new, story.at_ms, 0, -1)
    story.history.confirm(new.message, 1)
    story.wait(40)
    new.message.earliest_ms = T0_MS + 3 * HOUR_MS
    story.deliver(new.message)
    late_ms = HOUR_MS - SKEW_MS
    assert story.found(check) == [f"replace: message 1 was put off {late_ms} ms too long"]


# -- time to live and priorities ----------------------------------------------------------


def test_expired_message_that_comes_is_found() -> None:
    """P10: no expired message is delivered, and one that waits long enough may be gone."""
    story = Story()
    check = ExpiryCheck("s", 10 * HOUR_MS, 1000)
    message = story.send(0)
    check.priorities[0] = 50
    story.history.expired_ms["t"] = T0_MS
    assert [line[:11] for line in story.found(check)] == ["lost (1, 4)"]
    story.history.expired_ms["t"] = T0_MS + 1
    assert story.found(check) == []
    story.wait(11)
    story.deliver(message)
    assert story.found(check) == [f"ttl: message 0 came {HOUR_MS} ms after it had expired"]


def test_message_that_passes_a_more_urgent_one_is_found() -> None:
    """V5: of two ready messages, the one of lower rank comes first."""
    story = Story()
    check = ExpiryCheck("s", 100 * HOUR_MS, 60_000)
    plain, urgent = story.send(0), story.send(1)
    check.priorities |= {0: 50, 1: 0}
    story.wait()
    story.deliver(plain)
    story.wait()
    story.deliver(urgent)
    assert story.found(check) == ["priority: message 0 came before the more urgent 1"]


# -- groups -------------------------------------------------------------------------------


def test_follow_up_before_the_last_message_is_found() -> None:
    """Q10: the follow-up of a group comes when all its messages are finished."""
    story = Story()
    member, follow_up = story.send(0), story.send(-1)
    check = GroupCheck("s", [Group("g", [member], follow_up.number, closed=True)])
    arrival = story.deliver(member, acks=False)
    story.wait()
    story.deliver(follow_up, 1)
    story.wait()
    story.ack(arrival)
    assert story.found(check) == ["group: g was complete before message 0"]


def test_follow_up_that_does_not_come_or_comes_twice_is_found() -> None:
    """Q10: a group is complete exactly once."""
    story = Story()
    member, follow_up = story.send(0), story.send(-1)
    check = GroupCheck("s", [Group("g", [member], follow_up.number, closed=True)])
    story.deliver(member)
    story.wait()
    assert story.found(check) == ["the follow-up 1 of g has not come"]
    story.deliver(follow_up, 1)
    assert story.found(check) == []
    story.deliver(follow_up, 2)
    assert [line[:24] for line in story.found(check)] == ["doubled (1): message 1 i"]


# -- seeks and pauses ---------------------------------------------------------------------


def sought(story: Story, offset: int) -> tuple[SeekCheck, list[Message]]:
    """Deliver messages 0 and 1, and seek to an offset."""
    messages = [story.send(0), story.send(1)]
    for message in messages:
        story.deliver(message)
        story.history.acked_s["s", message.offset] = story.now_s()
    story.wait()
    seek = Seek("s", story.now_s(), offset=offset)
    story.history.seeks = {"s": [seek]}
    story.history.end_seek(seek, story.now_s())
    story.wait()
    return SeekCheck("t", SKEW_MS), messages


def test_message_that_does_not_come_again_after_a_seek_is_found() -> None:
    """C3: a seek back delivers every message from its position on."""
    story = Story()
    check, messages = sought(story, 1)
    assert [line[:36] for line in story.found(check)] == ["message 1 at offset 1 was lost for s"]
    story.deliver(messages[1])
    assert story.found(check) == []


def test_message_from_before_the_position_of_a_seek_is_found() -> None:
    """C3: a seek ahead passes the messages before its position."""
    story = Story()
    check, messages = sought(story, 1)
    story.deliver(messages[1])
    story.deliver(messages[0])
    assert [line[:19] for line in story.found(check)] == ["seek: offset 0 came"]


def test_delivery_during_a_pause_is_found() -> None:
    """V1: a paused subscription gets nothing."""
    story = Story()
    check, messages = sought(story, 1)
    now_s = story.now_s()
    check.pauses.append(Pause("s", now_s - 60, now_s + 60))
    story.deliver(messages[1])
    assert story.found(check) == ["pause: offset 1 of s came during it"]


# -- schedules ----------------------------------------------------------------------------


def test_occurrence_that_is_missed_doubled_or_wrong_is_found() -> None:
    """B2: each occurrence is published exactly once."""
    story = Story()
    schedule = Occurrences("tick", HOUR_MS, T0_MS, is_aligned=True, created_by_ms=T0_MS)
    check = ScheduleCheck(SKEW_MS, schedules=[schedule])
    schedule.found.update([HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS])
    check.until_ms = 4 * HOUR_MS
    assert story.found(check) == []
    schedule.found.update([3 * HOUR_MS, 4 * HOUR_MS + 1])
    check.until_ms = 4 * HOUR_MS + 2 * SKEW_MS
    assert story.found(check) == [
        f"schedule: occurrence {3 * HOUR_MS} of tick was published 2 times",
        f"schedule: tick has no occurrences at [{4 * HOUR_MS + 1}]",
        f"occurrences [{4 * HOUR_MS}] of tick were not published",
    ]


def test_interval_that_begins_before_or_long_after_its_creation_is_found() -> None:
    """B2: a request whose answer was lost may have created it at any time until the answer."""
    story = Story()
    by_ms = T0_MS + 5 * HOUR_MS
    schedule = Occurrences("tick", HOUR_MS, T0_MS, is_aligned=False, created_by_ms=by_ms)
    check = ScheduleCheck(SKEW_MS, schedules=[schedule])
    for created_ms, may_begin in (
        (T0_MS - HOUR_MS, False),
        (T0_MS, True),
        (by_ms, True),
        (by_ms + HOUR_MS, False),
    ):
        first_ms = created_ms + HOUR_MS
        schedule.found.clear()
        schedule.found.update([first_ms])
        wrong = f"schedule: the first occurrence of tick is at {first_ms}"
        assert story.found(check) == ([] if may_begin else [wrong])


def changed_schedule() -> ScheduleCheck:
    """Return a schedule of each hour that is paused from 2 h to 5 h, and then of each two hours."""
    changed = ChangedSchedule("c", SKEW_MS)
    changed.changes = [
        Change(HOUR_MS, False, 0, HOUR_MS),
        Change(HOUR_MS, True, 2 * HOUR_MS + 60_000, 2 * HOUR_MS + 1),
        Change(HOUR_MS, False, 5 * HOUR_MS + 60_000, 6 * HOUR_MS),
        Change(2 * HOUR_MS, False, 7 * HOUR_MS + 60_000, 9 * HOUR_MS + 60_000),
    ]
    changed.found.update([HOUR_MS, 2 * HOUR_MS, 6 * HOUR_MS, 7 * HOUR_MS, 9 * HOUR_MS + 60_000])
    return ScheduleCheck(SKEW_MS, until_ms=11 * HOUR_MS, changed=changed)


def test_occurrence_during_a_pause_or_of_earlier_times_is_found() -> None:
    """B2: a paused schedule publishes nothing, and an updated one has its new times only."""
    story, check = Story(), changed_schedule()
    assert story.found(check) == []
    assert check.changed is not None
    for at_ms in (3 * HOUR_MS, 8 * HOUR_MS + 120_000, 10 * HOUR_MS):
        check.changed.found[at_ms] = 1
        wrong = f"schedule: c was paused or had other times at [{at_ms}]"
        assert story.found(check) == [wrong]
        del check.changed.found[at_ms]


def test_occurrence_that_is_lost_in_a_change_is_found() -> None:
    """B2: occurrences before a change, and from the one that its answer names, are published."""
    story, check = Story(), changed_schedule()
    assert check.changed is not None
    for at_ms in [*check.changed.found]:
        del check.changed.found[at_ms]
        assert story.found(check) == [f"occurrences [{at_ms}] of c were not published"]
        check.changed.found[at_ms] = 1


def test_demanded_message_that_is_lost_or_doubled_is_found() -> None:
    """B2: each answered demand publishes one message, and others publish one at most."""
    story, check = Story(), changed_schedule()
    assert check.changed is not None
    check.changed.asked, check.changed.answered = 2, 1
    assert story.found(check) == ["c was run 1 times, and ran 0 times"]
    check.changed.demanded = 2
    assert story.found(check) == []
    check.changed.demanded = 3
    assert story.found(check) == ["schedule: c was run 2 times, and ran 3 times"]


# -- backlog quotas -----------------------------------------------------------------------


def limited(story: Story, quota: Quota, due_after_hours: int = 0) -> QuotaCheck:
    """Store three messages under a quota that holds from the beginning on."""
    quota.from_ms = 0
    check = QuotaCheck({"t": ["t"]}, SKEW_MS, [quota])
    story.history.expired_ms["t"] = NEVER_MS
    for offset in range(3):
        message = story.send(offset, story.at_ms + due_after_hours * HOUR_MS)
        check.latest_ms[message.number] = message.earliest_ms + SKEW_MS
    story.wait()
    return check


def test_publish_that_a_full_backlog_accepts_is_found() -> None:
    """P10: due messages count for a quota, and all messages of an ordered subscription."""
    for due_after_hours, kind, is_full in (
        (0, "shared", True),
        (9, "shared", False),
        (9, "log", True),
    ):
        story = Story()
        story.history.kinds["s"] = kind
        check = limited(story, Quota(3), due_after_hours)
        check.accepted(story.history, [story.send(3)], story.at_ms)
        wrong = "quota: t accepted message 3 with a backlog of 3, and its quota is 3"
        assert list(check.violations(story.history)) == ([wrong] if is_full else [])


def test_publish_that_is_refused_although_there_is_room_is_found() -> None:
    """P10: a publish is refused only if the backlog has reached the quota."""
    for most, is_right in ((3, True), (4, False), (0, False)):
        story = Story()
        check = limited(story, Quota(most))
        message = story.send(-1)
        message.refused = True
        check.refused(story.history, [message], story.at_ms, story.at_ms)
        wrong = (
            f"quota: t refused a message at {story.at_ms} with a backlog of at most 3,"
            f" and its quota is {most}"
        )
        assert list(check.violations(story.history)) == ([] if is_right else [wrong])


def test_quota_that_is_being_changed_allows_both() -> None:
    """A broker may obey the earlier or the later quota meanwhile."""
    story = Story()
    check = limited(story, Quota(1))
    check.quotas.append(Quota(9, called_ms=story.at_ms))
    story.wait()
    check.accepted(story.history, [story.send(3)], story.at_ms)
    check.refused(story.history, [story.send(-1)], story.at_ms, story.at_ms)
    assert list(check.violations(story.history)) == []


def test_message_that_no_quota_drops_must_come() -> None:
    """P10: a quota that drops the oldest messages keeps as many as it allows."""
    for quota, is_lost in ((Quota(2, drops=True), False), (Quota(3, drops=True), True)):
        story = Story()
        check = limited(story, quota)
        for message in story.history.messages[1:]:
            story.deliver(message)
        lost = ["lost (quota): message 0 was not delivered to s, and no quota dropped it"]
        assert story.found(check) == (lost if is_lost else [])


def test_newest_messages_are_not_dropped() -> None:
    """P10: the oldest messages are dropped first."""
    story = Story()
    check = limited(story, Quota(2, drops=True))
    story.history.messages[2].earliest_ms = story.at_ms
    for message in story.history.messages[:2]:
        story.deliver(message)
        story.history.acked_s["s", message.offset] = story.now_s()
        story.wait()
    assert [line[:23] for line in story.found(check)] == ["lost (quota): message 2"]


def test_backlog_that_stays_above_its_quota_is_found() -> None:
    """P10: messages that are due and not in flight are dropped."""
    story = Story()
    check = limited(story, Quota(2, drops=True))
    assert check.over(story.history, {"t": (3, 0)}, story.at_ms)
    assert not check.over(story.history, {"t": (3, 3)}, story.at_ms)
    assert not check.over(story.history, {"t": (2, 0)}, story.at_ms)


# -- delay policies and retention ---------------------------------------------------------


def delayed(**settings: Any) -> DelayCheck:
    """Return the check of a namespace with settings that hold from the beginning on."""
    return DelayCheck("t", SKEW_MS, [Delays(from_ms=0, **settings)])


def test_message_beyond_the_bounds_of_the_delay_policy_is_found() -> None:
    """B10: a delay outside the bounds is refused, and no other one."""
    check = delayed(least_ms=HOUR_MS, most_ms=3 * HOUR_MS)
    story = Story()
    message = story.send(0)
    for hours in (0, 2, 4):
        check.accepted(message, hours * HOUR_MS, story.at_ms)
        check.refused([message], [hours * HOUR_MS], story.at_ms)
    assert [line[:53] for line in check.violations(story.history)] == [
        "delay: message 0 was accepted with a delay of 0 ms by",
        "delay: message 0 and those with it were refused with ",
        "delay: message 0 was accepted with a delay of 1440000",
    ]


def test_message_with_a_delay_in_a_namespace_without_delays_is_found() -> None:
    """P2: delays can be disabled, and then the default does not count either."""
    check, story = delayed(are_enabled=False, default_ms=HOUR_MS), Story()
    message = story.send(0)
    check.accepted(message, None, story.at_ms)
    story.deliver(message)
    assert story.found(check) == []
    check.accepted(message, HOUR_MS, story.at_ms)
    assert len(story.found(check)) == 1


def test_message_with_a_wrong_default_delay_is_found() -> None:
    """B10: a message without a delay gets the default."""
    for hours, found in ((1, ["early (10): offset 0 "]), (2, []), (3, ["delay: message 0 is d"])):
        story = Story()
        check, message = delayed(default_ms=2 * HOUR_MS), story.send(0)
        check.accepted(message, None, story.at_ms)
        named_ms = story.at_ms + hours * HOUR_MS
        story.wait(hours)
        story.deliver(message, due_ms=named_ms)
        assert [line[:21] for line in story.found(check)] == found


def test_message_that_the_log_forgets_too_early_is_found() -> None:
    """P11: the log keeps a finished message for the retention of its namespace."""
    check, story = delayed(retention_ms=5 * HOUR_MS), Story()
    story.send(0)
    story.wait(4)
    assert check.lacks(story.history, set(), story.at_ms) == {0}
    assert check.lacks(story.history, {0}, story.at_ms) == set()
    story.wait(2)
    assert check.lacks(story.history, set(), story.at_ms) == set()


# -- bulk changes and deletions -----------------------------------------------------------


def test_message_that_a_bulk_change_left_out_is_found() -> None:
    """B13: a bulk change cancels all messages that match and wait; a due one may have come."""
    story = Story()
    check = BulkCheck("s", SKEW_MS)
    messages = [story.send(0, story.at_ms + HOUR_MS), story.send(1, story.at_ms + 9 * HOUR_MS)]
    story.wait()
    changes = check.begin(messages, None, story.at_ms)
    story.wait()
    check.end(changes, story.at_ms)
    story.deliver(messages[0])
    assert story.found(check) == []
    story.wait(9)
    story.deliver(messages[1])
    assert [line[:14] for line in story.found(check)] == ["cancelled (10)"]


def test_message_that_a_bulk_change_moves_too_late_is_found() -> None:
    """B13: a message that is run now is due at once, or within the spread."""
    story = Story()
    check = BulkCheck("s", SKEW_MS)
    messages = [story.send(offset, story.at_ms + 24 * HOUR_MS) for offset in range(2)]
    story.wait()
    changes = check.begin(messages, story.at_ms, story.at_ms, 2 * HOUR_MS)
    story.wait()
    check.end(changes, story.at_ms)
    messages[0].earliest_ms = story.at_ms + 2 * HOUR_MS
    messages[1].earliest_ms = story.at_ms + 3 * HOUR_MS
    story.wait(4)
    story.deliver(messages[0])
    assert [line[:22] for line in story.found(check)] == ["lost (1, 4): message 1"]
    story.deliver(messages[1])
    late_ms = HOUR_MS - SKEW_MS
    assert story.found(check) == [f"bulk: message 1 is due {late_ms} ms too late"]


def test_dead_letter_that_a_bulk_redrive_left_is_found() -> None:
    """B13: a bulk redrive that is done has sent all dead letters that match."""
    story = Story()
    story.history.list_dead_letters("s", {7: (0, 3)})
    check = BulkRedriveCheck("s", {7})
    assert list(check.unfinished(story.history)) == ["redrive: a bulk change left dead letters [7]"]
    story.history.list_dead_letters("s", {})
    assert list(check.unfinished(story.history)) == []


def test_message_of_a_deleted_topic_is_found() -> None:
    """D1: a topic that was created again has its own messages only."""
    story = Story()
    check = DeleteCheck([story.send(4), story.send(5)])
    assert list(check.differs("the log", [0, 1])) == []
    assert list(check.differs("the index", [0, 7, 7])) == [
        "delete: the index has messages [7] of a deleted topic",
        "delete: the index lacks messages [1]",
        "delete: the index has a message twice: [0, 7, 7]",
    ]


# -- posts --------------------------------------------------------------------------------


def test_message_that_comes_long_after_a_posted_cancel_is_found() -> None:
    """One that was delivered before the broker carried the request out may come again."""
    story = Story()
    check = PostCheck(48 * 3600.0)
    late, soon = (story.send(offset, story.at_ms + 100 * HOUR_MS) for offset in (0, 1))
    check.cancelled([late, soon], story.now_s())
    for message in (late, soon):
        message.earliest_ms = story.at_ms
    story.wait(40)
    story.deliver(soon, acks=False).returned_s = story.now_s()
    story.wait(20)
    story.deliver(soon).again = True
    story.ack(story.history.arrivals[0])
    assert list(check.violations(story.history)) == []
    story.deliver(late)
    (found,) = check.violations(story.history)
    assert found.startswith(f"posted: message {late.number} came")


# -- limits of deliveries -----------------------------------------------------------------


def under_limits(story: Story, **limits: Any) -> tuple[LimitCheck, list[Message]]:
    """Store three messages for a subscription whose limits hold from the beginning on."""
    check = LimitCheck({"s": [Limits(from_ms=0, **limits)]}, story.terms)
    return check, [story.send(offset) for offset in range(3)]


def test_delivery_beyond_the_messages_in_flight_is_found() -> None:
    """Q3: an acknowledgement makes room, and so does the end of a connection."""
    story = Story()
    check, messages = under_limits(story, max_in_flight=2)
    arrivals = [story.deliver(message, acks=False) for message in messages[:2]]
    story.wait(0.1)
    late = story.deliver(messages[2], acks=False)
    wrong = f"limits: {late} came as one of 3 in flight at once, under {check.limits['s'][0]}"
    assert list(check.violations(story.history)) == [wrong]
    arrivals[0].acked_s = late.sent_s
    assert list(check.violations(story.history)) == []
    arrivals[0].acked_s = None
    assert isinstance(arrivals[1].way.connection, Cable)
    arrivals[1].way.connection.ended_s = late.sent_s
    assert list(check.violations(story.history)) == []


def test_deliveries_of_an_earlier_owner_do_not_count() -> None:
    """Q3: a broker that takes a topic over knows nothing of the messages in flight. It has its own
    limit. The earlier owner may send nothing more.
    """
    story = Story()
    check, messages = under_limits(story, max_in_flight=1, max_rate=0.002)
    story.deliver(messages[0], acks=False)
    story.wait(0.01)
    story.terms.take(story.now_s(), "other")
    stale = story.deliver(messages[1], acks=False)
    assert list(check.violations(story.history)) == [
        f"limits: {stale} was sent by an earlier owner"
    ]
    story.host = "other"
    story.history.arrivals.remove(stale)
    story.deliver(messages[1], acks=False)
    assert list(check.violations(story.history)) == []
    story.deliver(messages[2], acks=False)
    found = [line.partition(" came as one of ")[2] for line in check.violations(story.history)]
    assert [line[:12] for line in found] == ["2 in flight ", "2 messages i"]


def test_delivery_faster_than_the_rate_is_found() -> None:
    """Q3: in t seconds, a rate allows rate * (t + 0.1) + 1 messages, and some more on a slow
    disk.
    """
    for pause_s, is_right in ((370, False), (390, True)):
        story = Story()
        check, messages = under_limits(story, max_rate=0.002)
        for message in messages:
            story.deliver(message)
            story.wait(pause_s / 3600)
        found = [line for line in check.violations(story.history) if "came as one of 2" in line]
        assert len(found) == (0 if is_right else 2)


def test_limits_that_are_being_changed_allow_both() -> None:
    """A broker may obey the earlier or the later limits meanwhile."""
    story = Story()
    check, messages = under_limits(story, max_in_flight=1, max_rate=0.002)
    check.limits["s"].append(Limits(called_ms=story.at_ms))
    story.wait()
    for message in messages:
        story.deliver(message, acks=False)
    assert list(check.violations(story.history)) == []


# -- exclusive consumers and key ranges ---------------------------------------------------

# Their slots are 9,680 and 33,824.
LOW_KEY, HIGH_KEY = "low", "high"


def claimed(story: Story, *claims: Claim) -> tuple[ClaimCheck, list[Stay]]:
    """Let consumers with these claims in, one after the other."""
    check = ClaimCheck(story.terms)
    for claim in claims:
        check.stays.append(Stay("s", claim, story.now_s(), consumer=Consumer("s")))
        join(story, check.stays[-1])
        story.wait()
    return check, check.stays


def join(story: Story, stay: Stay) -> None:
    stay.joins.append((story.now_s(), Way(Cable(), story.host)))


def keyed(story: Story, offset: int, key: str) -> Message:
    message = story.send(offset)
    message.key = key
    return message


def test_overlapping_claims_that_are_held_together_are_found() -> None:
    """V16: two exclusive consumers, or two that want the same keys, are never there together."""
    for first, second, is_right in (
        (ALL, ALL, False),
        ((0, 9), (9, 20), False),
        ((0, 9), (10, 20), True),
        ((0, 9), AUTO, True),
        (AUTO, AUTO, True),
    ):
        story = Story()
        check, _ = claimed(story, first, second)
        wrong = f"claim: s let in {first} and {second} together"
        assert list(check.violations(story.history)) == ([] if is_right else [wrong])


def test_claim_is_free_after_its_consumer_has_left_or_lost_its_connection() -> None:
    """It is also free after a take-over."""
    for end in ("leave", "cut", "take"):
        story = Story()
        check, (first,) = claimed(story, ALL)
        assert first.consumer is not None
        if end == "leave":
            first.consumer.left_s = story.now_s()
        elif end == "cut":
            first.joins[0][1].connection.ended_s = story.now_s()
        else:
            story.host = "other"
            story.terms.take(story.now_s(), "other")
        second = Stay("s", ALL, story.now_s(), consumer=Consumer("s"))
        check.stays.append(second)
        join(story, second)
        assert list(check.violations(story.history)) == []
        story.wait()
        first.consumer.left_s = None
        join(story, first)
        wrong = "claim: s let in all and all together"
        assert list(check.violations(story.history)) == [wrong]


def refuse(story: Story, check: ClaimCheck, claim: Claim) -> list[str]:
    """Refuse a consumer now, and return what the check finds about that."""
    check.found.clear()
    check.refused(Stay("s", claim, story.now_s()), story.host, story.now_s())
    return check.found


def test_claim_that_is_refused_although_it_is_free_is_found() -> None:
    """V16: a claim is refused only while another consumer may have it."""
    story = Story()
    check, (first,) = claimed(story, (0, 9))
    assert refuse(story, check, (9, 20)) == []
    wrong = f"claim: s refused (10, 20) at {story.now_s():.0f} s, which no consumer had"
    assert refuse(story, check, (10, 20)) == [wrong]
    first.closed_s = story.now_s()
    story.wait()
    assert refuse(story, check, (9, 20)) == []  # its connection may still count
    first.confirmed = True
    assert len(refuse(story, check, (9, 20))) == 1
    first.asked_again_s = [1.0]
    assert refuse(story, check, (9, 20)) == []  # so may an earlier one
    story.wait(48)
    assert len(refuse(story, check, (9, 20))) == 1


def test_claim_that_is_refused_because_of_a_consumer_of_the_earlier_owner_is_found() -> None:
    """A take-over ends all claims. An earlier owner may refuse what it likes."""
    story = Story()
    check, (first,) = claimed(story, ALL)
    story.terms.take(story.now_s(), "other")
    story.wait()
    assert refuse(story, check, ALL) == []
    story.host = "other"
    assert len(refuse(story, check, ALL)) == 1
    first.asked_again_s = [story.now_s()]
    assert refuse(story, check, ALL) == []
    first.asked_again_s = []
    first.joins.clear()  # it waits to be let in, and asks again whenever it loses its connection
    assert refuse(story, check, ALL) == []


def test_message_of_a_key_that_another_consumer_claims_is_found() -> None:
    """V16: a consumer with a key range gets its keys and no others, and messages without a key."""
    assert slot_of(LOW_KEY) < 30_000 < slot_of(HIGH_KEY)
    low: Claim = (0, 30_000)
    for claims, key, at, is_right in (
        ((low,), LOW_KEY, 0, True),
        ((low,), HIGH_KEY, 0, False),
        ((low,), "", 0, True),
        ((low, None), LOW_KEY, 1, False),
        ((low, None), HIGH_KEY, 1, True),
        ((low, AUTO), LOW_KEY, 1, False),
        ((AUTO, None), HIGH_KEY, 1, False),
        ((AUTO, None), "", 1, True),
    ):
        story = Story()
        check, stays = claimed(story, *claims)
        story.deliver(keyed(story, 0, key), stay=stays[at])
        assert [line[:7] for line in check.violations(story.history)] == (
            [] if is_right else ["claim: "]
        )


def test_keys_that_move_to_another_consumer_without_a_cause_are_found() -> None:
    """V16: a share of the keys stays with its consumer until consumers come or go."""
    for leaves in (False, True):
        story = Story()
        check, stays = claimed(story, AUTO, AUTO, AUTO)
        story.deliver(keyed(story, 0, LOW_KEY), stay=stays[0])
        story.wait()
        if leaves:
            assert stays[2].consumer is not None
            stays[2].consumer.left_s = story.now_s()
            stays[2].closed_s = story.now_s()
        story.wait()
        story.deliver(keyed(story, 1, LOW_KEY), stay=stays[1])
        wrong = (
            f"claim: {story.history.arrivals[1]} came to another consumer than"
            f" {story.history.arrivals[0]}"
        )
        assert list(check.violations(story.history)) == ([] if leaves else [wrong])


def test_claim_at_an_earlier_owner_does_not_count() -> None:
    """A broker that lost its topic may still have consumers, and sends them nothing."""
    story = Story()
    check, (stay,) = claimed(story, ALL)
    story.terms.take(story.now_s(), "other")
    arrival = story.deliver(story.send(0), stay=stay)
    assert list(check.violations(story.history)) == [
        f"claim: {arrival} was sent by an earlier owner"
    ]


# -- push ---------------------------------------------------------------------------------

LATER = (NACK, BACK_OFF, "")


class Pushed:
    """A story of one process that pushes, and of its posts."""

    def __init__(self, concurrency: int = 1) -> None:
        self.story = Story()
        self.check = PushCheck("s")
        self.pusher = Pusher()
        self.deliveries = Deliveries(10_000, concurrency)
        self.pusher.deliveries.append(self.deliveries)
        self.check.pushers.append(self.pusher)
        self.numbers = itertools.count(1)
        self.way = Way(Cable(), "host")

    def take(self, message: Message) -> Try:
        """Deliver a message to the process."""
        story = self.story
        arrival = story.deliver(message, acks=False)
        arrival.way = self.way._replace(sent=arrival.way.sent)
        arrival.again = len(story.history.courses["s", message.offset]) > 1
        one = Try(arrival, 1, story.now_s())
        self.deliveries.tries.append(one)
        self.check.types[message.number] = "text/plain"
        return one

    def post(self, one: Try, status: int, **headers: str) -> Post:
        """Post the message of a try, and answer at once."""
        due = datetime.fromtimestamp(one.arrival.due_ms / 1000, UTC)
        usual = {
            "webhook-id": f"msg_{one.arrival.offset}",
            "webhook-timestamp": str(self.story.at_ms // 1000),
            "escapement-attempt": str(one.attempt),
            "escapement-due": due.isoformat(),
            "content-type": "text/plain",
        }
        body = payload_of(self.story.history.messages[one.arrival.number])
        now_s = self.story.now_s()
        post = Post({**usual, **headers}, body, now_s, status, heard_s=now_s)
        one.posts.append(post)
        return post

    def end(self, one: Try, end: tuple[str, int, str]) -> None:
        one.end, one.delay_ms, one.detail = end
        one.ended_s, one.ended_number = self.story.now_s(), next(self.numbers)
        one.sure = True
        if one.end == ACK:
            self.story.ack(one.arrival)
        elif one.end == NACK:
            one.arrival.returned_s = one.ended_s

    def once(self, message: Message, status: int, end: tuple[str, int, str]) -> Try:
        """Post a message, and end its try."""
        one = self.take(message)
        self.post(one, status)
        self.end(one, end)
        return one

    def found(self) -> list[str]:
        return [line for line in self.story.found(self.check) if line.startswith("push")]


def test_post_that_ends_in_another_way_than_its_answer_says_is_found() -> None:
    """B16: 2xx acknowledges, other 4xx reject, and everything else is tried again."""
    pushed = Pushed()
    for offset, (status, end) in enumerate(
        [(204, (ACK, 0, "")), (410, (REJECT, 0, "HTTP 410")), (500, LATER), (429, LATER)]
    ):
        one = pushed.once(pushed.story.send(offset), status, end)
        pushed.story.wait()
        assert pushed.found() == []
        for wrong in [(ACK, 0, ""), (REJECT, 0, "HTTP 404"), (NACK, 0, "")]:
            if wrong != end:
                (line,) = _found_with(pushed, one, end=wrong[0], delay_ms=0, detail=wrong[2])
                assert " ended as " in line
    one.posts[0].heard_s = None
    assert len(_found_with(pushed, one, end=ACK, delay_ms=0)) == 1


def _found_with(pushed: Pushed, one: Try, **changes: Any) -> list[str]:
    """Return what is found if a try were another one."""
    tries = pushed.deliveries.tries
    at = tries.index(one)
    tries[at] = replace(one, **changes)
    found = pushed.found()
    tries[at] = one
    return found


def test_post_with_wrong_headers_is_found() -> None:
    """B16: id, attempt, due time, time, type and signature."""
    pushed = Pushed()
    one = pushed.once(pushed.story.send(0), 200, (ACK, 0, ""))
    assert pushed.found() == []
    for name, wrong in {
        "escapement-attempt": "2",
        "escapement-due": "2026-12-24T18:00:00.000Z",
        "webhook-timestamp": "1",
        "content-type": "text/html",
    }.items():
        post = one.posts[0]
        one.posts[0] = replace(post, headers={**post.headers, name: wrong})
        (line,) = pushed.found()
        assert line.endswith(f" was posted with a wrong {name}: {wrong}")
        one.posts[0] = post
    pushed.check.secrets = {"whsec_c2VjcmV0"}
    pushed.check.secrets_known = True
    one.posts[0].headers["webhook-signature"] = "v1,none"
    assert len(pushed.found()) == 1
    at_s, body = pushed.story.at_ms // 1000, one.posts[0].body
    right = signature("whsec_c2VjcmV0", "msg_0", at_s, body)
    one.posts[0].headers["webhook-signature"] = f"v1,none {right}"
    assert pushed.found() == []


def test_ids_of_posts_that_are_not_those_of_their_messages_are_found() -> None:
    """B16: the same id for each attempt, and for no other message."""
    pushed = Pushed()
    messages = [pushed.story.send(offset) for offset in (0, 1)]
    for message, id in ((messages[0], "a"), (messages[1], "b"), (messages[0], "a")):
        one = pushed.take(message)
        pushed.post(one, 500, **{"webhook-id": id})
        pushed.end(one, LATER)
        pushed.story.wait()
    assert pushed.found() == []
    one.posts[0].headers["webhook-id"] = "c"
    assert pushed.found() == ["push: a message was posted with two ids"]
    one.posts[0].headers["webhook-id"] = "b"
    assert len(pushed.found()) == 1


def test_second_post_in_one_attempt_and_a_post_without_a_delivery_are_found() -> None:
    """B16"""
    pushed = Pushed()
    one = pushed.once(pushed.story.send(0), 200, (ACK, 0, ""))
    post = pushed.post(one, 200)
    (line,) = pushed.found()
    assert line.endswith("posted 2 times in one attempt")
    one.posts.remove(post)
    pushed.check.stray.append(post)
    assert pushed.found() == ["push: msg_0 was posted without a delivery"]


def test_rejected_message_that_comes_again_and_a_wrong_reason_are_found() -> None:
    """B16: a dead letter at once, with the answer."""
    pushed = Pushed()
    message = pushed.story.send(0)
    pushed.once(message, 404, (REJECT, 0, "HTTP 404"))
    found = pushed.story.history.dead_letters["s"]
    found.seen[0], found.remaining = (0, 0), {0}
    for reason, count in ((("rejected", "HTTP 404"), 0), (("rejected", ""), 1), (("x", ""), 1)):
        found.reasons[0] = reason
        assert len(pushed.found()) == count
    del found.reasons[0]
    pushed.story.wait()
    pushed.take(message)
    (line,) = pushed.found()
    assert line.endswith("again after it was rejected")


def test_post_before_the_wait_that_the_endpoint_asked_for_is_found() -> None:
    """B16: neither the message nor another one is posted before."""
    pushed = Pushed()
    messages = [pushed.story.send(offset) for offset in (0, 1)]
    one = pushed.take(messages[0])
    pushed.post(one, 503).wait_ms = 2 * HOUR_MS  # an hour at most
    pushed.end(one, (NACK, HOUR_MS, ""))
    pushed.story.wait(0.5)
    later = pushed.once(messages[0], 200, (ACK, 0, ""))
    assert len(pushed.found()) == 2
    pushed.deliveries.tries.remove(later)
    pushed.story.history.courses["s", 0].pop()
    pushed.once(messages[1], 200, (ACK, 0, ""))
    (line,) = pushed.found()
    assert line.endswith("was posted beside 0 others, and 0 may be")
    pushed.deliveries.tries[-1].taken_s = pushed.deliveries.tries[-1].ended_s = 3600.0
    assert not [line for line in pushed.found() if "beside" in line]


def test_posts_during_the_pause_of_a_breaker_are_found() -> None:
    """B16: after 5 failures there is a pause of 5 s, and then one post."""
    pushed = Pushed(concurrency=4)
    for offset in range(5):
        pushed.once(pushed.story.send(offset), 500, LATER)
        pushed.story.at_ms += 1_000
    pushed.story.at_ms += 3_900
    early = pushed.take(pushed.story.send(5))
    assert len(pushed.found()) == 1
    pushed.deliveries.tries.remove(early)
    pushed.story.at_ms += 200
    pushed.take(pushed.story.send(6))
    assert pushed.found() == []
    pushed.take(pushed.story.send(7))
    (line,) = pushed.found()
    assert line.endswith("posted beside 1 others, and 1 may be")


def test_too_many_posts_at_a_time_are_found() -> None:
    """B16: one more for each success, up to the concurrency."""
    pushed = Pushed(concurrency=2)
    for offset in range(3):
        pushed.once(pushed.story.send(offset), 200, (ACK, 0, ""))
        pushed.story.wait()
    pushed.take(pushed.story.send(3))
    pushed.take(pushed.story.send(4))
    assert pushed.found() == []
    pushed.take(pushed.story.send(5))
    (line,) = pushed.found()
    assert line.endswith("posted beside 2 others, and 2 may be")


def test_message_that_is_posted_twice_at_once_is_found() -> None:
    """B16: the ack wait is longer than the timeout, so only a fault explains two posts."""
    pushed = Pushed()
    message = pushed.story.send(0)
    pushed.take(message)
    other = Pusher(deliveries=[Deliveries(10_000, 1)])
    pushed.check.pushers.append(other)
    pushed.story.at_ms += 1_000
    other.deliveries[0].tries.append(pushed.take(message))
    pushed.deliveries.tries.pop()
    (line,) = pushed.found()
    assert line.endswith(" was posted twice at once")
    pushed.pusher.killed_s = 0.5
    assert pushed.found() == []


def test_post_to_a_paused_target_is_found() -> None:
    """B16: a process follows the changes of the target."""
    pushed = Pushed()
    pushed.check.pauses.append(Pause("s", 100.0, 20_000.0))
    pushed.pusher.listings.append(Listing(50.0, 150.0, True))
    assert pushed.found() == []
    pushed.pusher.listings.append(Listing(200.0, 210.0, True))
    assert pushed.found() == ["push: a broker told a paused target at 210 s"]
    pushed.pusher.listings[-1].listed = False
    pushed.story.wait()
    pushed.once(pushed.story.send(0), 200, (ACK, 0, ""))
    (line,) = pushed.found()
    assert line.endswith("posted after its target was paused")
    pushed.pusher.resumed_s.append(3_000.0)
    assert pushed.found() == []


# -- tokens, grants and the audit log -------------------------------------------------------


def guarded() -> tuple[GuardCheck, Request]:
    """Return a check of a token, created at 1,000, with a grant to produce of 2,000.

    The request is one to publish at 3,000.
    """
    token = TokenLife("text", "id", "r", called_ms=900, created_ms=1_000)
    grants = [Granted(from_ms=0), Granted(called_ms=1_900, from_ms=2_000, actions=PRODUCE)]
    check = GuardCheck(10, {("r", "t/n/*"): grants}, [token])
    return check, Request(token, 3_000, "produce", "t/n/a")


PRODUCE = frozenset({"produce"})


def test_client_that_is_refused_although_it_has_a_token_and_a_right_is_found() -> None:
    """O1."""
    check, request = guarded()
    check.denied(request._replace(called_ms=1_950), 3_000)  # the grant was being added
    check.denied(request._replace(action="peek"), 3_100)
    check.denied(request._replace(topic="t/other/a"), 3_100)
    check.unauthenticated(request._replace(called_ms=950), 3_100)  # the token was being created
    assert check.found == []
    check.denied(request, 3_100)
    check.unauthenticated(request, 3_100)
    assert len(check.found) == 2


def test_client_that_is_served_without_a_right_is_found() -> None:
    """O1: a broker may know a removal later."""
    check, request = guarded()
    (grants,) = check.grants.values()
    grants.append(Granted(called_ms=4_000, from_ms=4_100))
    request = request._replace(called_ms=6_000)
    check.served(request, 4_050, 6_100)
    assert check.found == []
    check.served(request, 4_200, 6_100)
    check.served(request._replace(action="peek"), 4_050, 6_100)
    assert len(check.found) == 2


def test_client_that_is_served_with_an_invalid_token_is_found() -> None:
    """O1: revoked, expired, or not created yet."""
    check, request = guarded()
    token = request.token
    token.revoking_ms, token.revoked_ms = 4_000, 4_100
    check.served(request._replace(called_ms=6_000), 4_050, 6_100)
    check.unauthenticated(request._replace(called_ms=6_000), 6_100)
    assert check.found == []
    check.served(request._replace(called_ms=6_000), 4_200, 6_100)
    check.served(request._replace(called_ms=800), 700, 850)
    token.revoking_ms = token.revoked_ms = NEVER_MS
    token.expires_ms = 5_000
    check.served(request._replace(called_ms=8_000), 4_050, 8_100)
    assert len(check.found) == 3


def test_broker_that_names_or_lists_other_rights_is_found() -> None:
    """O1: after changes with an answer."""
    check, request = guarded()
    check.told(request, {"t/n/*": PRODUCE}, 2_500, 3_100)
    check.listed({"id": "valid"}, {("r", "t/n/*"): PRODUCE}, 3_000, 3_100)
    assert check.found == []
    check.told(request, {}, 2_500, 3_100)
    check.listed({}, {}, 3_000, 3_100)
    request.token.revoking_ms, request.token.revoked_ms = 4_000, 4_100
    check.listed({"id": "valid"}, {("r", "t/n/*"): PRODUCE}, 5_000, 5_100)
    assert len(check.found) == 4


def recorded(**changes: Any) -> list[str]:
    """Return the findings about the row of a confirmed request, which has some changes."""
    check = AuditCheck(10)
    action = Action("why", "root", "tokens.create", "r", {"role": "r"}, 1_000, 1_100, DONE, True)
    check.begin(action)
    row = {
        "reason": "why",
        "role": "root",
        "verb": "tokens.create",
        "object": "r",
        "arguments": json.dumps({"role": "r", "digest": "***"}),
        "at_ms": 1_050,
        "outcome": DONE,
        "bundle": 0,
    }
    copies = changes.pop("copies", 1)
    check.listed([row | changes] * copies, 2_000)
    return check.found


def test_row_of_the_audit_log_that_is_missing_doubled_or_wrong_is_found() -> None:
    """B17."""
    assert recorded() == []
    assert recorded(outcome=None) == []
    assert len(recorded(copies=0)) == 1
    assert len(recorded(copies=2)) == 1
    assert len(recorded(outcome="not_found")) == 1
    assert len(recorded(reason="another")) == 2  # and the row of the request is missing
    for wrong in ({"role": "r"}, {"object": "s"}, {"verb": "tokens.revoke"}, {"at_ms": 2_000}):
        assert len(recorded(**wrong)) == 1
    assert len(recorded(arguments=json.dumps({"role": "r", "digest": "secret"}))) == 1
