"""Peers with incomplete frames, and peers that disconnect, use only bounded memory."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path

import trio
import trio.lowlevel

import escapement
from escapement.message import Blobs, MessageBatch
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.protocol.limits import MAX_FRAME_BYTES, PROTOCOL_VERSION
from support.processes.broker import PATIENT, BrokerProcess, broker_process

MIB = 1 << 20


def connected(broker: BrokerProcess) -> tuple[socket.socket, Connection]:
    """Connect, and shake hands."""
    peer = socket.create_connection(("127.0.0.1", broker.port))
    protocol = Connection("client")
    peer.sendall(b"".join(protocol.send(wire.Hello(PROTOCOL_VERSION, "unfinished", {}))))
    protocol.receive_data(peer.recv(65_536))
    assert [type(answer) for answer in protocol.events()] == [wire.Welcome]
    peer.setblocking(False)
    return peer, protocol


def begin_a_large_frame(broker: BrokerProcess) -> socket.socket:
    """Connect, and begin to send a large frame."""
    peer, _ = connected(broker)
    size = MAX_FRAME_BYTES - 100
    send_on(peer, size.to_bytes(4, "big"))
    return peer


def send_on(peer: socket.socket, data: bytes | memoryview = bytes(MIB)) -> int:
    """Send as much as the kernel accepts, and return its size in bytes."""
    try:
        return peer.send(data)
    except (BlockingIOError, ConnectionError):
        return 0


async def test_unfinished_frames_are_bounded_while_a_good_client_goes_on(tmp_path: Path) -> None:
    """Invariant 9: 120 peers each send 15.9 MiB of a frame without its end."""
    with broker_process(tmp_path / "broker") as broker:
        before = most = broker.rss_bytes()
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            producer = await client.producer("t")
            peers = [begin_a_large_frame(broker) for _ in range(120)]
            left = dict.fromkeys(peers, MAX_FRAME_BYTES - MIB // 10)
            async with client.consumer("t", "s") as inbox:
                for number in range(100):
                    for peer in peers:
                        if left[peer] > 0:
                            left[peer] -= send_on(peer, bytes(min(left[peer], MIB)))
                    await producer.send(b"%d" % number)
                    message = await inbox.receive(timeout_s=30)
                    assert message is not None
                    await message.ack()
                    most = max(most, broker.rss_bytes())
                    # The broker needs several reads for this frame, and each may have to wait.
                    await producer.send_many([bytes(1_000)] * 300, delay=timedelta(days=1))
        for peer in peers:
            peer.close()
        assert (most - before) / MIB < 250, f"{(most - before) / MIB:.0f} MiB more"
        assert broker.stop() == 0


def requests_that_wait(protocol: Connection) -> bytes:
    """Return requests for pages, and large requests that wait until the pages are read."""
    pages = [wire.Read(number, "t", 0, -1, 1_000) for number in range(1, 13)]
    large = [
        wire.Admin(number, "topics.list", {"text": "x" * (MIB - 1_000)}) for number in range(13, 65)
    ]
    return b"".join(buffer for command in (*pages, *large) for buffer in protocol.send(command))


async def test_waiting_requests_are_bounded_while_a_good_client_goes_on(tmp_path: Path) -> None:
    """Invariant 9: 10 peers each send 52 requests of 1 MiB, and do not read the answers."""
    with broker_process(tmp_path / "broker") as broker:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            producer = await client.producer("t")
            for _ in range(40):
                await producer.send_many([bytes(MIB // 16)] * 16, delay=timedelta(days=1))
            before = most = broker.rss_bytes()
            peers = [connected(broker) for _ in range(10)]
            left = {peer: memoryview(requests_that_wait(protocol)) for peer, protocol in peers}
            async with client.consumer("t", "s") as inbox:
                for number in range(100):
                    for peer, data in left.items():
                        left[peer] = data[send_on(peer, data[:MIB]) :]
                    await producer.send(b"%d" % number)
                    message = await inbox.receive(timeout_s=30)
                    assert message is not None
                    await message.ack()
                    most = max(most, broker.rss_bytes())
                    await producer.send_many([bytes(1_000)] * 300, delay=timedelta(days=1))
        for peer in left:
            peer.close()
        print(f"{(most - before) / MIB:.0f} MiB more")
        assert (most - before) / MIB < 350, f"{(most - before) / MIB:.0f} MiB more"
        assert broker.stop() == 0


async def test_requests_that_are_large_when_decoded_take_bounded_memory(tmp_path: Path) -> None:
    """Invariant 9: 300 peers finish a request of 60 KB at once, which takes 1.3 MB decoded."""
    with broker_process(tmp_path / "broker") as broker:
        peers = [connected(broker) for _ in range(300)]
        before = most = broker.rss_bytes()
        texts = {"a": [str(10 + number % 90) for number in range(19_900)]}
        requests = [
            b"".join(protocol.send(wire.Admin(1, "topics.list", texts))) for _, protocol in peers
        ]
        for (peer, _), request in zip(peers, requests, strict=True):
            peer.settimeout(60)
            peer.sendall(request)
        for peer, protocol in peers:
            answers: list[wire.Command] = []
            while not answers:
                most = max(most, broker.rss_bytes())
                data = peer.recv(65_536)
                assert data, "the broker closed the connection"
                protocol.receive_data(data)
                answers += protocol.events()
            assert isinstance(answers[0], wire.Refused)
            assert answers[0].request_id == 1, "of the arguments"
            peer.close()
        print(f"{(most - before) / MIB:.0f} MiB more")
        assert (most - before) / MIB < 150, f"{(most - before) / MIB:.0f} MiB more"
        assert broker.stop() == 0


async def test_buffers_end_with_their_session(tmp_path: Path) -> None:
    """Invariant 9: buffers of disconnected peers do not wait for the garbage collector."""
    with broker_process(tmp_path / "broker") as broker:
        sizes = []
        for _ in range(9):
            peers = [begin_a_large_frame(broker) for _ in range(20)]
            for _ in range(40):
                for peer in peers:
                    send_on(peer)
                await trio.lowlevel.checkpoint()
            sizes.append(broker.rss_bytes())
            for peer in peers:
                peer.close()
        assert (sizes[-1] - sizes[0]) / MIB < 150, [size // MIB for size in sizes]


async def test_frames_before_a_waiting_request_are_freed(tmp_path: Path) -> None:
    """Invariant 9: 40 peers send 15 MiB, then the beginning of a request that waits."""
    with broker_process(tmp_path / "broker") as broker:
        before = broker.rss_bytes()
        peers = [connected(broker) for _ in range(40)]
        body = MessageBatch(Blobs.of([bytes(15 * MIB)])).encode()
        for peer, protocol in peers:
            refused = wire.Publish(7, 0, -1, None, None, body)  # this producer is not open
            request = wire.Admin(1, "topics.list", {"text": "x" * (MIB - 1_000)})
            begun = b"".join(protocol.send(request))[:200]
            peer.setblocking(True)
            peer.sendall(b"".join(protocol.send(refused)) + begun)
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            await client.admin("broker.stats")
            more = (broker.rss_bytes() - before) / MIB
        for peer, _ in peers:
            peer.close()
        assert more < 200, f"{more:.0f} MiB more"
        assert broker.stop() == 0
