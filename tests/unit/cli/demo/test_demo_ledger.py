"""The demo's ledger: which messages count as lost, early or duplicated."""

from __future__ import annotations

from escapement.cli.demo.ledger import Arrival, Ledger, Outage


def ledger_of(count: int) -> Ledger:
    """Return a ledger of the confirmed messages 0 to count - 1, each due at 1000."""
    ledger = Ledger()
    for number in range(count):
        ledger.asked(number, 1000)
    ledger.confirmed(range(count))
    return ledger


def test_promises_are_kept_when_each_message_arrives_once_and_in_time() -> None:
    ledger = ledger_of(3)
    for number in range(3):
        ledger.arrived(Arrival(number, number, 1000, 1000 + number))
    assert not ledger.settled
    ledger.acknowledged(range(3))
    assert ledger.settled
    assert ledger.kept
    assert ledger.lateness_ms(None) == (1.0, 1.98, 2.0)


def test_confirmed_message_that_does_not_arrive_is_lost() -> None:
    ledger = ledger_of(2)
    ledger.arrived(Arrival(0, 0, 1000, 1000))
    assert ledger.pending == 1
    assert not ledger.kept
    assert not ledger.settled


def test_message_sent_without_a_receipt_is_not_lost() -> None:
    ledger = ledger_of(0)
    ledger.asked(0, 1000)
    assert ledger.kept
    assert not ledger.settled


def test_message_is_early_by_its_requested_and_by_its_reported_due_time() -> None:
    ledger = ledger_of(2)
    ledger.arrived(Arrival(0, 0, 900, 999))  # the broker reports too early a due time
    ledger.arrived(Arrival(1, 1, 1100, 1099))  # the broker delivered before the due time
    assert ledger.early == 2
    assert not ledger.kept


def test_only_messages_in_flight_at_the_kill_may_be_redelivered() -> None:
    ledger = ledger_of(2)
    for number in range(2):
        ledger.arrived(Arrival(number, number, 1000, 1000))
    ledger.acknowledged([0])
    ledger.killed()
    ledger.arrived(Arrival(1, 1, 1000, 2000))
    assert (ledger.again, ledger.duplicates) == (1, 0)
    assert ledger.kept
    ledger.arrived(Arrival(0, 0, 1000, 2000))
    assert (ledger.again, ledger.duplicates) == (1, 1)
    assert not ledger.kept


def test_a_message_stored_twice_is_a_duplicate_even_after_a_kill() -> None:
    ledger = ledger_of(1)
    ledger.arrived(Arrival(0, 0, 1000, 1000))
    ledger.killed()
    ledger.arrived(Arrival(0, 7, 1000, 2000))
    assert ledger.duplicates == 1


def test_messages_delayed_by_an_outage_are_counted_separately() -> None:
    ledger = ledger_of(3)
    outage = Outage(killed_ms=1500, back_ms=2500)
    before = Arrival(0, 0, 1400, 1404)
    during = Arrival(1, 1, 1600, 2600)
    after = Arrival(2, 2, 2600, 2602)
    for arrival in (before, during, after):
        ledger.arrived(arrival)
    assert ledger.held_up(outage) == [during]
    assert ledger.lateness_ms(outage)[2] == 4
