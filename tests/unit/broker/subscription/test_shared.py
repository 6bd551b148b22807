"""A shared subscription with offers, scans and clock changes at awkward moments."""

from __future__ import annotations

from dataclasses import replace

from escapement.broker.subscription.keys.key_ranges import KeyRanges
from escapement.broker.subscription.priorities.ready import Rows
from escapement.storage.encoding.attempts import MOST_ATTEMPTS, RELEASED
from escapement.storage.index import Key
from support.messages.shared_subscriptions import column, handed, scan, subscription


def test_message_without_room_during_a_scan_is_delivered_later() -> None:
    """Invariant 4: messages due at once are offered before those that the wheel passes later."""
    made = subscription(ready_messages=2)
    index = {0: 110, 1: 111, 2: 112, 3: 105}
    made.bands.normal.begin_scan(Key(101, 0), True)
    made.offer(column(110, 111, 112), column(0, 1, 2))  # two of them fit
    made.offer(column(105), column(3))  # due earlier, but the wheel's tick comes later
    made.end_scan([made.bands.normal], column(), column())
    got = handed(made, 200)
    while made.to_scan(200):
        scan(made, index, 200)
        got += handed(made, 200)
    assert sorted(got) == [0, 1, 2, 3]


def test_subscription_wakes_for_messages_that_a_clock_set_back_made_early() -> None:
    """Invariant 4: nothing else may ever happen in this topic, so it must wake itself."""
    made = subscription()
    scan(made, {}, 1_000)
    made.offer(column(1_000), column(0))
    assert handed(made, 995) == [], "early"
    assert made.next_wake_ms() == 1_000
    made.advance(1_000)
    assert handed(made, 1_000) == [0]
    wake_ms = made.next_wake_ms()
    assert wake_ms is None or wake_ms > 1_000


def test_leaving_consumer_ends_the_wake_up_for_early_messages() -> None:
    """A wake-up time in the past would wake the subscription without end."""
    made = subscription()
    scan(made, {}, 1_000)
    made.offer(column(1_000), column(0))
    assert handed(made, 995) == []
    made.leave(made.consumers[0], 996)
    made.advance(1_000)
    wake_ms = made.next_wake_ms()
    assert wake_ms is None or wake_ms > 1_000


def test_messages_made_early_by_a_clock_set_back_delay_no_due_message() -> None:
    """Invariant 4: a redelivered message is due only later again; a new one is due now."""
    made = subscription()
    scan(made, {}, 5_000)
    made.offer(column(5_000), column(0))
    assert handed(made, 5_000) == [0]
    made.rewind(1_000)
    consumer = made.consumers[0]
    made.negative_acknowledge(consumer, column(0), 0, 1_000)
    made.offer(column(1_000, 3_000), column(1, 2))
    assert handed(made, 1_000) == [1]
    assert made.next_wake_ms() == 3_000
    made.advance(3_000)
    assert handed(made, 3_000) == [2]
    assert made.next_wake_ms() == 5_000
    made.advance(5_000)
    assert handed(made, 5_000) == [0]


def test_attempts_are_counted_up_to_their_maximum() -> None:
    """V4: also for a message that was once released untried and has failed ever since."""
    made = subscription()
    tried = Rows(column(500, 500), column(0, 1), column(RELEASED | MOST_ATTEMPTS, RELEASED))
    made.attempts.recover(tried, column(900, 900), stored=True)
    made.begin(1_000)
    for count in (1, 2, 3):
        (hand,) = made.assign(1_000, 100)
        assert hand.rows.counts.tolist() == [MOST_ATTEMPTS + 1, count]
        assert made.was_sent_before(hand.rows).tolist() == [True, True]
        made.negative_acknowledge(made.consumers[0], column(0, 1), 0, 1_000)
    (hand,) = made.assign(1_000, 100)
    made.release(made.consumers[0], column(0, 1), 0, 1_000)
    (again,) = made.assign(1_000, 100)
    assert again.rows.counts.tolist() == hand.rows.counts.tolist()


def test_assumed_delivery_is_stored_until_its_dead_letter_is_written() -> None:
    """B1: a crash would forget it otherwise, and a cancelled message would be lost."""
    made = subscription()
    made.set_policy(replace(made.record.policy, expired_to_dead_letter=True))
    made.expiry.set_ttl(100)
    made.attempts.recover(Rows(column(500), column(0), column(RELEASED)), column(500), stored=True)
    made.begin(1_000)
    assert made.most_attempts == 1
    scan(made, {0: 500}, 1_000)
    assert handed(made, 1_000) == []
    assert made.dead.rows.offsets.tolist() == [0]
    assert not made.has_lapsed(column(0))[0]
    assert made.all_attempts(1_000).offsets.tolist() == [0]
    assert made.kept_ms(column(0)).tolist() == [500]


def test_subscriptions_without_ranges_share_one_table_of_owners() -> None:
    """Invariant 9: a table of half a megabyte for each such subscription would be too much."""
    one, other = KeyRanges([]), KeyRanges([])
    assert one._owners is other._owners
    assert not one._owners.flags.writeable
