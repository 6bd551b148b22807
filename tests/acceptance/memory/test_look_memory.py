"""Requests that read large messages use only bounded memory, all together."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import trio

import escapement
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.protocol.limits import PROTOCOL_VERSION
from support.processes.broker import PATIENT, BrokerProcess, broker_process

MIB: Final = 1 << 20
TOPIC: Final = "public/default/large"
PEERS: Final = 6
LARGE_BYTES: Final = 7 * MIB
PAYLOADS: Final = [bytes([number]) * LARGE_BYTES for number in range(4)]
DEAD: Final = {"topic": "public/default/x", "subscription": "s"}


def peek(request_id: int) -> wire.Command:
    return wire.Admin(request_id, "topics.peek", {"topic": TOPIC, "count": 5})


def show(request_id: int) -> wire.Command:
    return wire.Admin(request_id, "messages.show", {"topic": TOPIC, "offset": request_id % 4})


def list_dead_letters(request_id: int) -> wire.Command:
    return wire.Admin(request_id, "dlq.list", DEAD)


def reschedule(request_id: int) -> wire.Command:
    return wire.Reschedule(request_id, TOPIC, np.array([request_id % 4]), 3_600_000, -1, 0)


def redrive(request_id: int) -> wire.Command:
    return wire.Admin(request_id, "dlq.redrive", {**DEAD, "count": 1})


def find_by_property(request_id: int) -> wire.Command:
    return wire.Admin(request_id, "topics.peek", {"topic": TOPIC, "properties": {"colour": "red"}})


def select_by_key(request_id: int) -> wire.Command:
    return wire.Admin(request_id, "messages.select", {"topic": TOPIC, "key": "k"})


def read(request_id: int) -> wire.Command:
    return wire.Read(request_id, TOPIC, request_id % 4, -1, 10)


MIX: Final = (
    peek,
    show,
    list_dead_letters,
    reschedule,
    redrive,
    find_by_property,
    select_by_key,
    read,
)


def any_of_the_mix(request_id: int) -> wire.Command:
    return random.Random(request_id).choice(MIX)(request_id)


class Peer:
    """A connection that sends its requests at once, and then reads the answers."""

    def __init__(
        self, broker: BrokerProcess, request: Callable[[int], wire.Command], count: int
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.port), timeout=60)
        self._protocol = Connection("client")
        self._count = count
        self._send(wire.Hello(PROTOCOL_VERSION, "peer", {}))
        assert isinstance(self._next()[0], wire.Welcome)
        for number in range(1, count + 1):
            self._send(request(number))

    def _send(self, command: wire.Command) -> None:
        self.socket.sendall(b"".join(self._protocol.send(command)))

    def _next(self) -> list[wire.Command]:
        """Return the next answers, at least one."""
        found: list[wire.Command] = []
        while not found:
            data = self.socket.recv(65_536)
            assert data, "the broker closed the connection"
            self._protocol.receive_data(data)
            found += self._protocol.events()
        return found

    def answers(self) -> list[wire.Command]:
        found: list[wire.Command] = []
        while len(found) < self._count:
            found += self._next()
        return found


async def give_up(client: escapement.Broker, payloads: list[bytes]) -> None:
    """Make a dead letter of each payload."""
    await client.admin("subscriptions.create", **DEAD, policy={"max_deliveries": 1})
    producer = await client.producer(DEAD["topic"])
    async with client.consumer(**DEAD) as inbox:
        for payload in payloads:
            await producer.send(payload)
            message = await inbox.receive(timeout_s=30)
            assert message is not None
            await message.nack()
    while (await client.admin("dlq.count", **DEAD))["dead_letters"] < len(payloads):  # noqa: ASYNC110
        await trio.sleep(0.05)


async def publish(client: escapement.Broker, payloads: list[bytes]) -> None:
    """Publish each payload with a delay, a key and a property."""
    producer = await client.producer(TOPIC)
    for payload in payloads:
        await producer.send(payload, delay="1h", key="k", properties={"colour": "red"})


async def growth_bytes(
    broker: BrokerProcess, request_of: Callable[[int], wire.Command], peers: int, count: int
) -> int:
    """Send ``count`` requests over each of some connections; return the growth of the memory."""
    before = most = broker.rss_bytes()
    answers: list[wire.Command] = []

    async def read_all(peer: Peer) -> None:
        answers.extend(await trio.to_thread.run_sync(peer.answers))

    with ExitStack() as open_peers:
        async with trio.open_nursery() as nursery:
            for _ in range(peers):
                peer = Peer(broker, request_of, count)
                open_peers.callback(peer.socket.close)
                nursery.start_soon(read_all, peer)
            while len(answers) < peers * count:
                most = max(most, broker.rss_bytes())
                await trio.sleep(0.01)
    assert {type(one) for one in answers} <= {wire.AdminReply, wire.Amended, wire.Page}
    return most - before


@pytest.mark.parametrize(
    ("request_of", "count"),
    [(peek, 60), (show, 60), (list_dead_letters, 60), (reschedule, 15)],
)
async def test_requests_that_read_large_messages_take_bounded_memory(
    tmp_path: Path, request_of: Callable[[int], wire.Command], count: int
) -> None:
    """Invariant 9: hundreds come at the same time."""
    with broker_process(tmp_path / "broker") as broker:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            if request_of is list_dead_letters:
                await give_up(client, PAYLOADS)
            else:
                await publish(client, PAYLOADS)
        more_bytes = await growth_bytes(broker, request_of, PEERS, count)
        assert more_bytes / MIB < 350, f"{more_bytes / MIB:.0f} MiB more"
        assert broker.stop() == 0


async def test_requests_of_many_kinds_together_take_bounded_memory(tmp_path: Path) -> None:
    """Invariant 9: all threads of the broker reuse the memory of large messages.

    With the default settings of the allocator they take 550 MiB here.
    """
    with broker_process(tmp_path / "broker") as broker:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            await give_up(client, PAYLOADS)
            await publish(client, PAYLOADS)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish, client, PAYLOADS * 100)
                more_bytes = await growth_bytes(broker, any_of_the_mix, 3, 60)
                nursery.cancel_scope.cancel()
        assert more_bytes / MIB < 390, f"{more_bytes / MIB:.0f} MiB more"
        assert broker.stop() == 0
