"""The reason of single requests: which commands have it, and which brokers get it (B17)."""

from __future__ import annotations

import anyio
import anyio.abc
import numpy as np
import pytest

import escapement.sync
from escapement.errors import InvalidRequest
from escapement.protocol import commands as wire
from escapement.protocol.limits import LIMIT_PRODUCER_REASON, LIMIT_REASON, MAX_REASON_CHARS
from support.client_peer import Peer, connect, on_both
from support.listening_peer import listening


async def lost_once(peer: Peer, person: escapement.Broker) -> list[str]:
    """Cancel a message. The connection is lost before the answer. Return the reasons sent."""
    peer.silent = True
    peer.heard.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: person.cancel([7], topic="t"))
        while not peer.heard_of(wire.Cancel):  # noqa: ASYNC110
            await anyio.sleep(0.001)
        peer.silent = False
        await peer.cut()
    return [command.reason for command in peer.heard_of(wire.Cancel)]


@on_both
async def test_reason_is_sent_again_and_only_to_brokers_that_know_it() -> None:
    """B17: a broker of an earlier version would end the connection."""
    async with Peer.running() as peer:
        peer.limits = {LIMIT_REASON: MAX_REASON_CHARS}
        async with connect(peer) as broker:
            person = broker.because("ticket 4711")
            assert await lost_once(peer, person) == ["ticket 4711"] * 2
            peer.limits = {}
            assert await lost_once(peer, person) == ["ticket 4711", ""]
            peer.limits = {LIMIT_REASON: MAX_REASON_CHARS}
            assert await lost_once(peer, person) == ["", "ticket 4711"]
            assert await lost_once(peer, broker) == ["", ""]
            with pytest.raises(InvalidRequest, match="500 characters"):
                broker.because("x" * 501)


@on_both
async def test_new_producers_give_the_reason_to_brokers_that_know_it() -> None:
    """B17: also after a reconnect to another version. The producers of the client itself do not."""
    async with Peer.running() as peer:
        known = {LIMIT_REASON: MAX_REASON_CHARS, LIMIT_PRODUCER_REASON: MAX_REASON_CHARS}
        peer.limits = known
        async with connect(peer) as broker:
            await broker.producer("t")
            producer = await broker.because("ticket 4711").producer("t")
            for limits in ({LIMIT_REASON: MAX_REASON_CHARS}, known):
                peer.limits = limits
                await peer.cut()
                await producer.send(b"x")
    opened = [one for one in peer.heard_of(wire.OpenProducer) if one.name == producer.name]
    assert [one.reason for one in opened] == ["ticket 4711", "", "ticket 4711"]
    others = [one for one in peer.heard_of(wire.OpenProducer) if one.name != producer.name]
    assert {one.reason for one in others} == {""}


def test_blocking_client_gives_reasons_too() -> None:
    """B17: only the requests of the object that ``because`` returns have the reason."""
    with listening() as (peer, _, address):
        peer.limits = {LIMIT_REASON: MAX_REASON_CHARS}
        with escapement.sync.connect(address) as broker:
            person = broker.because("ticket 4711")
            person.cancel([7], topic="t")
            person.admin("echo")
            broker.admin("echo")
        cancels, verbs = peer.heard_of(wire.Cancel), peer.heard_of(wire.Admin)
    assert [one.reason for one in cancels] == ["ticket 4711"]
    assert [one.reason for one in verbs] == ["ticket 4711", ""]


@pytest.mark.parametrize(
    ("command", "size"),
    [
        (wire.Admin(1, "topics.list", {}), 4),
        (wire.Cancel(1, "t", np.array([7])), 4),
        (wire.Reschedule(1, "t", np.array([7]), 5, -1, 0), 7),
        (wire.OpenProducer(1, 1, "t", "p", -1), 6),
    ],
    ids=lambda value: type(value).__name__,
)
def test_frames_without_a_reason_are_as_before(command: wire.Command, size: int) -> None:
    """Brokers of an earlier version read them: a type, and the fields before the reason."""
    assert len(command.write()) == size
