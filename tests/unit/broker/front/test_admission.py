"""The bounds on connections: in all, of one address, and before the handshake."""

from __future__ import annotations

import random

import pytest

from escapement.broker.front.admission import Admission, Seat, bounded_part
from escapement.errors import Busy


def test_connections_in_all_are_bounded() -> None:
    admission = Admission(2, 100, 100)
    first = admission.admit("127.0.0.1", lambda: None)
    admission.admit(None, lambda: None)
    with pytest.raises(Busy, match="all 2 connections are in use"):
        admission.admit("10.0.0.1", lambda: None)
    first.leave()
    admission.admit("10.0.0.1", lambda: None)
    admission._check()


def test_one_address_has_a_share_and_loopback_has_none() -> None:
    """O3: one address cannot use all connections."""
    admission = Admission(1000, 3, 1000)
    seats = [admission.admit("10.0.0.1", lambda: None) for _ in range(3)]
    with pytest.raises(Busy, match=r"all 3 connections of 10\.0\.0\.1"):
        admission.admit("10.0.0.1", lambda: None)
    admission.admit("10.0.0.2", lambda: None)
    for _ in range(10):
        admission.admit("127.0.0.1", lambda: None)
        admission.admit("::1", lambda: None)
    with seats[0]:
        pass
    admission.admit("10.0.0.1", lambda: None)
    admission._check()


@pytest.mark.parametrize(
    ("host", "part"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.9.9.9", None),
        ("::ffff:127.0.0.1", None),
        ("::1", None),
    ],
)
def test_addresses_of_one_host_count_together(host: str, part: str | None) -> None:
    assert bounded_part(host) == part


def test_new_connection_takes_the_place_of_the_oldest_without_a_handshake() -> None:
    """O3: peers that never finish their handshake do not keep good clients out."""
    admission = Admission(1000, 1000, 2)
    ended: list[int] = []
    seats = [admission.admit("10.0.0.1", lambda n=n: ended.append(n)) for n in range(2)]
    seats[0].greeted()
    admission.admit("10.0.0.2", lambda: ended.append(2))
    assert ended == []
    admission.admit("10.0.0.3", lambda: ended.append(3))
    assert ended == [1]
    admission._check()


def test_random_connections_keep_the_bounds() -> None:
    """Invariant 9, against a list of the open seats."""
    rng = random.Random(7)
    admission = Admission(40, 15, 10)
    seats: list[Seat] = []

    def admit(host: str) -> None:
        here: list[Seat] = []

        def end() -> None:
            here[0].leave()
            seats.remove(here[0])

        try:
            here.append(admission.admit(host, end))
        except Busy:
            full = sum(seat.address == host for seat in seats) == 15
            assert full or len(seats) == 40
        else:
            seats.append(here[0])

    for _ in range(3000):
        step = rng.random()
        if step < 0.6:
            admit(f"10.0.0.{rng.randrange(4)}")
        elif seats and step < 0.8:
            rng.choice(seats).greeted()
        elif seats:
            seat = rng.choice(seats)
            seats.remove(seat)
            seat.leave()
        admission._check()
