"""The search for the broker of a bundle: addresses in turn, and redirections."""

from __future__ import annotations

from itertools import count
from time import monotonic

import anyio.lowlevel
import pytest

from escapement.broker.node.node_directory import NodeDirectory
from escapement.client.connection.address import Address, Addresses
from escapement.client.connection.line import Line
from escapement.client.connection.link import Stream
from escapement.client.connection.places import Places
from escapement.client.connection.route import NoOwner, Route
from escapement.client.connection.token_source import TokenSource
from escapement.client.settings import Settings
from escapement.errors import (
    Disconnected,
    EscapementError,
    OtherDatabase,
    ShuttingDown,
    Unauthenticated,
)
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.protocol.limits import PROTOCOL_VERSION
from escapement.storage.ownership import LiveBroker, Ownership
from support.client_peer import on_both

UNDERSTOOD = {"moved": 1, "bundles": 1, "ack_deadlines": 1}
WELCOME = wire.Welcome(PROTOCOL_VERSION, "b", "0", {"bundles": 3, "bundle": 2})


class Net:
    """Brokers by their hosts. Each answers Hello with the next of its answers; the last stays."""

    def __init__(self, **answers: list[wire.Command]) -> None:
        self.dialled: list[str] = []
        self.hellos: list[wire.Hello] = []
        self.down: set[str] = set()
        self.lost: set[str] = set()  # machines that answer nothing
        self.answers = answers

    async def dial(self, address: Address) -> Stream:
        self.dialled.append(address.host)
        if address.host in self.lost:
            await anyio.sleep_forever()
        if address.host in self.down or address.host not in self.answers:
            raise OSError("no route")
        answers = self.answers[address.host]
        return Answering(self.hellos, answers.pop(0) if len(answers) > 1 else answers[0])


class Answering:
    """A stream to a broker that answers Hello with one command."""

    def __init__(self, hellos: list[wire.Hello], answer: wire.Command) -> None:
        self._hellos = hellos
        self._answer = answer
        self._broker = Connection("broker")

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        self._broker.receive_data(item)
        self._hellos += [one for one in self._broker.events() if isinstance(one, wire.Hello)]

    async def receive(self, max_bytes: int = 0) -> bytes:
        await anyio.lowlevel.checkpoint()
        return b"".join(self._broker.send(self._answer))

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()


def route(net: Net, url: str, bundle: int | None) -> Route:
    return Route(net.dial, Places(Addresses.parse(url)), "", Settings(), bundle)


def refused(error: EscapementError) -> wire.Refused:
    return wire.Refused.because(error)


@on_both
async def test_moved_leads_to_the_owner() -> None:
    """B8: the client follows a chain of brokers, each of which knows a later owner."""
    net = Net(a=[wire.Moved(0, 2, "b", 4)], b=[wire.Moved(0, 2, "c", 5)], c=[WELCOME])
    found = route(net, "escapement://a", 2)
    await found.open("")
    assert net.dialled == ["a", "b", "c"]
    assert [hello.features for hello in net.hellos] == [UNDERSTOOD | {"bundle": 2}] * 3
    await found.open("")
    assert net.dialled[3:] == ["c"]


@on_both
async def test_a_bundle_that_comes_back_is_found_at_the_same_address() -> None:
    net = Net(a=[wire.Moved(0, 2, "b", 4), WELCOME], b=[wire.Moved(0, 2, "a", 5)])
    await route(net, "escapement://a", 2).open("")
    assert net.dialled == ["a", "b", "a"]


@on_both
async def test_brokers_that_point_at_each_other_end_the_attempt() -> None:
    """B8: neither knows a later owner, so the client waits before it tries again."""
    net = Net(a=[wire.Moved(0, 2, "b", 4)], b=[wire.Moved(0, 2, "a", 4)])
    with pytest.raises(Disconnected, match=r"a:7650 does not own bundle 2.*b:7650 does not own"):
        await route(net, "escapement://a", 2).open("")
    assert len(net.dialled) <= 4
    endless = [wire.Moved(0, 2, "a", epoch) for epoch in range(4, 100)]
    net = Net(a=endless)
    with pytest.raises(Disconnected, match="does not own bundle 2"):
        await route(net, "escapement://a", 2).open("")
    assert len(net.dialled) <= 10


@on_both
async def test_after_a_failed_round_a_lower_epoch_is_believed() -> None:
    """B8: the client remembers a wrong place, at which it fails. It is not stuck there."""
    answers = [None, refused(ShuttingDown("")), wire.Moved(0, 2, "", 2), wire.Moved(0, 2, "a", 7)]
    for answer in answers:
        net = Net(a=[wire.Moved(0, 2, "c", 7), wire.Moved(0, 2, "b", 2)], b=[WELCOME])
        if answer is not None:
            net.answers["c"] = [answer]
        found = route(net, "escapement://a", 2)
        with pytest.raises(EscapementError):
            await found.open("")
        assert "b" not in net.dialled
        await found.open("")
        assert net.dialled[-1] == "b"


@on_both
async def test_the_next_owner_is_not_forgotten_because_it_still_names_the_former_one() -> None:
    """B8: the former owner stops, and the client knew only its address."""
    net = Net(a=[WELCOME], b=[wire.Moved(0, 2, "a", 4), WELCOME])
    found = route(net, "escapement://a", 2)
    await found.open("")
    found.learn(wire.Moved(0, 2, "b", 4))
    net.down.add("a")
    with pytest.raises(NoOwner):
        await found.open("")
    await found.open("")
    assert net.dialled == ["a", "b", "a", "a", "b"]


@on_both
async def test_lost_machine_is_tried_last_until_it_answers() -> None:
    """B8: each attempt there takes an eighth of the time of its silence, and at least a second."""
    net = Net(a=[WELCOME], b=[wire.Moved(0, 2, "a", 4)])
    net.lost.add("a")
    found = route(net, "escapement://a,b", 2)
    began_s = anyio.current_time()
    took_s = []
    while anyio.current_time() < began_s + 100:
        last_s = anyio.current_time()
        with pytest.raises(NoOwner):
            await found.open("")
        took_s.append(anyio.current_time() - last_s)
    assert took_s[:2] == pytest.approx([11.25, 11.25 / 8], rel=0.1)
    assert max(took_s[1:]) == pytest.approx(10)
    assert net.dialled[:5] == ["a", "b", "a", "b", "a"]
    net.lost.clear()
    for _ in range(2):
        await found.open("")
    assert net.dialled[-3:] == ["b", "a", "a"]


@on_both
async def test_news_about_an_expired_owner_do_not_blind_a_client() -> None:
    """B8: the owner renews late, in the same epoch, and the client finds it in its next attempt."""
    seen = NodeDirectory("a")
    nodes = {one: LiveBroker(one, "", one, f"{one}:7650", False, 1000) for one in "abc"}
    expired = {one: nodes[one] for one in "ac"}
    seen.learn(expired, {2: Ownership(2, "b", "", 5, free=True)})
    during = wire.Moved(0, 2, *seen.owner_of(2))
    seen.learn(nodes, {2: Ownership(2, "b", "", 5, free=False)})
    after = wire.Moved(0, 2, *seen.owner_of(2))
    net = Net(a=[during, after], b=[WELCOME])
    found = route(net, "escapement://a", 2)
    with pytest.raises(NoOwner):
        await found.open("")
    await found.open("")
    assert net.dialled == ["a", "a", "b"]


@on_both
async def test_the_first_connection_takes_the_bundle_that_it_gets() -> None:
    net = Net(b=[WELCOME])
    found = route(net, "escapement://a,b", None)
    await found.open("")
    assert (net.dialled, found.bundle) == (["a", "b"], 2)
    assert net.hellos[0].features == UNDERSTOOD


@on_both
async def test_the_first_connection_follows_moved_to_any_bundle() -> None:
    """B8: the owner of the bundle that a broker names is gone, and another broker answers."""
    net = Net(a=[wire.Moved(0, 0, "gone", 4)], b=[WELCOME])
    found = route(net, "escapement://a,b", None)
    await found.open("")
    assert (net.dialled, found.bundle) == (["a", "b"], 2)


@on_both
async def test_all_tasks_of_a_line_end_when_its_token_is_refused() -> None:
    """B8: the client replaces such a line, so its tasks would add up."""
    net = Net(a=[refused(Unauthenticated("who"))])

    def other(bundle: int) -> Line:
        raise AssertionError("the line needs no other")

    way, source = route(net, "escapement://a", 0), TokenSource(None, None)
    line = Line(way, Settings(), source, None, count(1), other, monotonic)
    with anyio.fail_after(60):
        await line.run(None)
    assert isinstance(line.closed, Unauthenticated)


@on_both
async def test_the_error_is_that_of_a_broker_that_answered() -> None:
    net = Net(b=[refused(ShuttingDown("later"))])
    with pytest.raises(ShuttingDown, match="later"):
        await route(net, "escapement://a,b", None).open("")
    net = Net(a=[refused(Unauthenticated("who"))], b=[WELCOME])
    with pytest.raises(Unauthenticated, match="who"):
        await route(net, "escapement://a,b", None).open("")
    assert net.dialled == ["a"]
    with anyio.fail_after(1), pytest.raises(Disconnected, match=r"x:7650: no route.*y:7650: no"):
        await route(Net(), "escapement://x,y", None).open("")


def of_log(log: bytes) -> wire.Welcome:
    return wire.Welcome(PROTOCOL_VERSION, "b", "0", {"log": log})


ELSEWHERE = refused(OtherDatabase("another"))


@on_both
async def test_broker_of_another_database_is_skipped() -> None:
    """B8: the client names its log in Hello. A broker that ignores this is noticed, too."""
    net = Net(a=[of_log(b"one")], b=[ELSEWHERE], c=[of_log(b"two")], d=[WELCOME, of_log(b"one")])
    found = route(net, "escapement://a,b,c,d", None)
    await found.open("")
    net.down.add("a")
    for _ in range(2):
        await found.open("")
        found._last = None
    assert net.dialled == ["a", *"abcd", *"abcd"]
    assert ["log" in hello.features for hello in net.hellos] == [False] + 6 * [True]
    assert net.hellos[1].features["log"] == b"one"


@on_both
async def test_only_brokers_of_another_database_answer() -> None:
    """B8: they are no brokers to wait for, whatever bundle they have and whomever they let in."""
    net = Net(a=[of_log(b"one"), ELSEWHERE], b=[ELSEWHERE])
    found = route(net, "escapement://a,b", None)
    await found.open("")
    net.down.add("a")
    with pytest.raises(OtherDatabase, match="at escapement://b:7650 uses another") as it:
        await found.open("")
    assert not found.misled
    assert not it.value.retryable
    net.down.clear()
    with pytest.raises(OtherDatabase):
        await found.open("")
    assert found.misled
