"""The checks of the simulation's features find each broken promise, and nothing in a clean history.

Each test makes up a small history. Its subscription is named like that of the feature.
"""

from __future__ import annotations

from typing import Any

from histories.history import (
    NEVER_MS,
    Message,
    Seek,
)
from simulation.checks.bulk import BulkCheck
from simulation.checks.delaying import DelayCheck, Delays
from simulation.checks.deleting import DeleteCheck
from simulation.checks.expiring import ExpiryCheck
from simulation.checks.grouping import Group, GroupCheck
from simulation.checks.posting import PostCheck
from simulation.checks.quotas import Quota, QuotaCheck
from simulation.checks.redriving import BulkRedriveCheck
from simulation.checks.replacing import FIRST, LATEST, ReplaceCheck, Send
from simulation.checks.scheduling import Change, ChangedSchedule, Occurrences, ScheduleCheck
from simulation.checks.seeking import Pause, SeekCheck
from support.story import HOUR_MS, SKEW_MS, T0_MS, Story

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
