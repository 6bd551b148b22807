"""A shared subscription under offers, scans and clocks that come at awkward moments."""

from __future__ import annotations

from escapement.broker.subscription.keys.key_ranges import KeyRanges
from escapement.broker.subscription.priorities.ready import Rows
from escapement.storage.encoding.attempts import MOST_ATTEMPTS, RELEASED
from escapement.storage.index import Key
from support.shared_subscriptions import column, handed, scan, subscription


def test_what_finds_no_room_beside_a_scan_is_not_forgotten_for_something_due_later() -> None:
    """Invariant 4: what came due at once is offered before what the wheel passes later."""
    made = subscription(ready_messages=2)
    index = {0: 110, 1: 111, 2: 112, 3: 105}
    made.bands.normal.begin_scan(Key(101, 0), True)
    made.offer(column(110, 111, 112), column(0, 1, 2))  # two find room
    made.offer(column(105), column(3))  # earlier, but the wheel's tick came only now
    made.end_scan([made.bands.normal], column(), column())
    got = handed(made, 200)
    while made.to_scan(200):
        scan(made, index, 200)
        got += handed(made, 200)
    assert sorted(got) == [0, 1, 2, 3]


def test_what_a_clock_set_back_a_little_holds_up_asks_to_be_looked_at_in_time() -> None:
    """Invariant 4: nothing else may ever happen in this topic."""
    made = subscription()
    scan(made, {}, 1_000)
    made.offer(column(1_000), column(0))
    assert handed(made, 995) == [], "early"
    assert made.next_wake_ms() == 1_000
    made.advance(1_000)
    assert handed(made, 1_000) == [0]
    wake_ms = made.next_wake_ms()
    assert wake_ms is None or wake_ms > 1_000


def test_a_consumer_that_leaves_takes_a_wake_up_for_early_messages_with_it() -> None:
    """A wake-up in the past would be one without end."""
    made = subscription()
    scan(made, {}, 1_000)
    made.offer(column(1_000), column(0))
    assert handed(made, 995) == []
    made.leave(made.consumers[0], 996)
    made.advance(1_000)
    wake_ms = made.next_wake_ms()
    assert wake_ms is None or wake_ms > 1_000


def test_what_is_early_since_the_clock_went_back_holds_up_nothing_that_is_due() -> None:
    """Invariant 4: a message given back is due only in an hour again; a new one is due now."""
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


def test_attempts_are_counted_up_to_what_is_kept_of_them() -> None:
    """V4: of a message that was once handed back untried and has failed since for ever."""
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


def test_subscriptions_without_ranges_share_one_table_of_owners() -> None:
    """Invariant 9: half a megabyte for each subscription that asks for no range is too much."""
    one, other = KeyRanges([]), KeyRanges([])
    assert one._owners is other._owners
    assert not one._owners.flags.writeable
