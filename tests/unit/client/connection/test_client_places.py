"""The addresses that a client knows, and the owners of bundles, compared with a simple model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.client.connection.address import Address, Addresses
from escapement.client.connection.places import Places, bundle_in
from escapement.errors import InvalidRequest
from escapement.protocol.commands import Moved, Owner

NEWS = st.builds(
    Moved,
    st.just(0),
    st.integers(0, 2),
    st.sampled_from(["", "a", "b:7651", "[::1]:9", "no port:x"]),
    st.integers(0, 4),
)


def found(places: Places, bundle: int | None, last: Address | None = None) -> list[str]:
    return [
        str(address).removeprefix("escapement://") for address in places.candidates(bundle, last)
    ]


@given(st.lists(NEWS, max_size=12))
def test_the_owner_with_the_highest_epoch_is_tried_first(news: list[Moved]) -> None:
    """B8: stale news are ignored, whatever the order of the news."""
    places, model = Places(Addresses.parse("escapement://given")), dict[int, tuple[int, str]]()
    everything = {"given:7650"}
    for one in news:
        epoch, address = model.get(one.bundle, (-1, ""))
        known = one.address if "x" not in one.address else ""
        is_news = one.epoch > epoch or (one.epoch == epoch and known != "")
        is_first = one.epoch > epoch or address == ""
        assert places.learn(one) == (is_news and known != "" and is_first)
        if is_news:
            model[one.bundle] = one.epoch, known
            if known:
                parsed = str(Address.parse(f"escapement://{known}"))
                everything.add(parsed.removeprefix("escapement://"))
    assert places.count == max([1, *(one.bundle + 1 for one in news)])
    for bundle, (_, address) in model.items():
        first = Address.parse(f"escapement://{address or 'given'}")
        assert next(places.candidates(bundle, None)) == first
    assert sorted(found(places, None)) == sorted(everything)


def test_a_doubted_place_stays_known_and_gives_way_to_any_news() -> None:
    """B8: a client whose database was restored from a dump hears of lower epochs."""
    places = Places(Addresses.parse("escapement://given"))
    places.learn(Moved(0, 2, "b:1", 7))
    places.doubt(2)
    assert not places.learn(Moved(0, 2, "", 3))
    assert found(places, 2) == ["b:1", "given:7650"]
    places.doubt(2)
    assert places.learn(Moved(0, 2, "c:1", 3))
    assert not places.learn(Moved(0, 2, "b:1", 2))
    assert found(places, 2) == ["c:1", "given:7650", "b:1"]
    places.doubt(0)
    assert found(places, 0) == ["given:7650", "c:1", "b:1"]


def test_addresses_that_brokers_named_are_tried_last_and_the_oldest_are_forgotten() -> None:
    """B8: owners may come from a cluster whose addresses change with each restart."""
    places = Places(Addresses.parse("escapement://given"))
    for epoch in range(20):
        places.learn(Moved(0, 0, f"n{epoch}:1", epoch))
    named = [f"n{epoch}:1" for epoch in range(18, 11, -1)]
    assert found(places, 0) == ["n19:1", "given:7650", *named]
    places.learn(Moved(0, 0, "n12:1", 20))
    places.learn(Moved(0, 0, "new:1", 21))
    assert found(places, 0) == ["new:1", "given:7650", "n12:1", "n19:1", *named[:-2]]


def test_the_last_connection_is_tried_before_the_given_addresses() -> None:
    places = Places(Addresses.parse("escapement://a,b:1"))
    assert found(places, 0) == ["a:7650", "b:1"]
    assert found(places, 0, Address("b", 1)) == ["b:1", "a:7650"]
    places.learn(Owner(1, 0, "c:2", 1))
    assert found(places, 0, Address("b", 1)) == ["c:2", "b:1", "a:7650"]
    places.learn(Moved(0, 0, "", 2))
    assert found(places, 0, Address("b", 1)) == ["b:1", "a:7650", "c:2"]


def test_welcome_tells_the_number_of_bundles() -> None:
    places = Places([Address("a", 1, tls=True)])
    here = Address("a", 1, tls=True)
    for limits, bundle, count in (
        ({}, 0, 1),
        ({"bundles": 4, "bundle": 3}, 3, 4),
        ({"bundles": "x", "bundle": -1}, 0, 4),
    ):
        assert places.welcomed(limits, here)
        assert (bundle_in(limits), places.count) == (bundle, count)
    places.learn(Moved(0, 9, "b:2", 1))
    assert places.count == 10
    assert next(places.candidates(9, None)) == Address("b", 2, tls=True)


def test_welcome_tells_the_owner_and_its_epoch() -> None:
    """B8: the last broker named it with the epoch before, which stale news may have too."""
    places = Places(Addresses.parse("escapement://given"))
    places.learn(Moved(0, 1, "c:1", 5))
    places.welcomed({"bundles": 2, "bundle": 1, "epoch": 6}, Address("c", 1))
    assert not places.learn(Moved(0, 1, "b:1", 5))
    assert found(places, 1) == ["c:1", "given:7650"]
    places.welcomed({"bundles": 2, "bundle": 1, "epoch": "x"}, Address("d", 1))
    assert found(places, 1) == ["c:1", "given:7650"]


def test_several_addresses_are_parsed() -> None:
    parsed = Addresses.parse("escapements://a,b:7651,[::1]:7")
    assert parsed == (Address("a", 7650, True), Address("b", 7651, True), Address("::1", 7, True))
    assert Addresses.parse(str(parsed)) == parsed
    assert parsed.tls
    assert Addresses.parse("escapement://a") == (Address("a", 7650),)


@pytest.mark.parametrize("url", ["a,b", "escapement://a,", "escapement://,b", "escapement://a,u@b"])
def test_a_wrong_list_of_addresses_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="not a broker's address"):
        Addresses.parse(url)


def test_silent_address_is_the_last_and_its_attempts_are_short_at_first() -> None:
    """B8: its process hangs, or its machine is lost, and others know it as the owner."""
    places = Places(Addresses.parse("escapement://a,b"))
    a, b = places.given
    places.learn(Moved(0, 2, "a", 7))
    places.note_silence(a, 100)
    places.note_silence(a, 104)  # it is silent since then, and still
    assert found(places, 2, last=a) == ["b:7650", "a:7650"]
    assert places.owner_of(2) == a
    assert [places.patience_s(a, now_s) for now_s in (100, 108, 180)] == [1, 1, 10]
    assert places.patience_s(b, 180) is None
    places.note_answer(a)
    assert found(places, 2, last=a) == ["a:7650", "b:7650"]
    assert places.patience_s(a, 180) is None


def test_only_address_gets_the_whole_time_although_it_is_silent() -> None:
    places = Places(Addresses.parse("escapement://a"))
    (a,) = places.given
    places.note_silence(a, 100)
    assert places.patience_s(a, 100) is None
    places.learn(Moved(0, 2, "b", 7))
    assert places.patience_s(a, 100) == 1


def test_number_of_silent_addresses_is_bounded() -> None:
    places = Places(Addresses.parse("escapement://a"))
    for number in range(1000):
        places.note_silence(Address(f"h{number}", 1), number)
    assert len(places._silent_since_s) == 9
    assert places.patience_s(Address("h999", 1), 999) == 1
