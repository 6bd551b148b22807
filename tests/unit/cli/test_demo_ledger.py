"""The demo's judge: what it calls lost, early, or delivered again."""

from __future__ import annotations

from escapement.cli.demo.ledger import Arrival, Ledger, Outage


def ledger_of(count: int) -> Ledger:
    """Messages 0 to count - 1, confirmed, due at 1000 each."""
    ledger = Ledger()
    for number in range(count):
        ledger.asked(number, 1000)
    ledger.confirmed(range(count))
    return ledger


def test_all_is_kept_when_each_arrives_once_and_in_time() -> None:
    ledger = ledger_of(3)
    for number in range(3):
        ledger.arrived(Arrival(number, number, 1000, 1000 + number))
    assert not ledger.settled
    ledger.acknowledged(range(3))
    assert ledger.settled
    assert ledger.kept
    assert ledger.lateness_ms(None) == (1.0, 1.98, 2.0)


def test_what_is_confirmed_and_does_not_arrive_is_lost() -> None:
    ledger = ledger_of(2)
    ledger.arrived(Arrival(0, 0, 1000, 1000))
    assert ledger.pending == 1
    assert not ledger.kept
    assert not ledger.settled


def test_what_was_sent_without_a_receipt_is_not_lost() -> None:
    ledger = ledger_of(0)
    ledger.asked(0, 1000)
    assert ledger.kept
    assert not ledger.settled


def test_early_is_measured_by_what_was_asked_and_by_what_the_broker_says() -> None:
    ledger = ledger_of(2)
    ledger.arrived(Arrival(0, 0, 900, 999))  # the broker thought it due too soon
    ledger.arrived(Arrival(1, 1, 1100, 1099))  # the broker did not wait
    assert ledger.early == 2
    assert not ledger.kept


def test_only_what_was_in_flight_at_the_kill_may_come_again() -> None:
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


def test_what_an_outage_held_up_is_counted_apart() -> None:
    ledger = ledger_of(3)
    outage = Outage(killed_ms=1500, back_ms=2500)
    before = Arrival(0, 0, 1400, 1404)
    during = Arrival(1, 1, 1600, 2600)
    after = Arrival(2, 2, 2600, 2602)
    for arrival in (before, during, after):
        ledger.arrived(arrival)
    assert ledger.held_up(outage) == [during]
    assert ledger.lateness_ms(outage)[2] == 4
