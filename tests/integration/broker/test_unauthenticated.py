"""Peers without a handshake: bounded in number, size and time."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from pathlib import Path

import pytest
import trio

import escapement
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.protocol.limits import MAX_HANDSHAKE_BYTES, PROTOCOL_VERSION
from support.certificates import Authority
from support.processes.broker import PATIENT, BrokerProcess, broker_process

LIMITS = {"greetings": 20, "connections": 30, "handshake_timeout_s": 1.0}


def call(broker: BrokerProcess) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", broker.port))
    peer.settimeout(20)
    return peer


def answer(peer: socket.socket) -> wire.Command | None:
    """Return the first command that the broker sends, or None if it closes the connection."""
    client = Connection("client")
    client.send(wire.Hello(PROTOCOL_VERSION, "test", {}))
    while data := peer.recv(65_536):
        client.receive_data(data)
        for command in client.events():
            return command
    return None


def hello(padding: int = 0) -> bytes:
    command = wire.Hello(PROTOCOL_VERSION, "test", {"padding": bytes(padding)} if padding else {})
    return b"".join(Connection("client").send(command))


async def test_slow_peers_are_closed_and_do_not_keep_good_clients_out(tmp_path: Path) -> None:
    """O3: twice as many slow peers as may be without a handshake."""
    with broker_process(tmp_path / "data", limits=LIMITS) as broker:
        peers = [call(broker) for _ in range(40)]
        for peer in peers:
            peer.send(hello()[:5])
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            await (await client.producer("t")).send(b"x")
            for peer in peers:
                try:
                    said = await trio.to_thread.run_sync(answer, peer)
                except ConnectionError:
                    said = None
                assert said is None or isinstance(said, wire.Refused)
                peer.close()
            await (await client.producer("u")).send(b"x")


def test_frame_before_the_handshake_has_at_most_4_kib(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker:
        with call(broker) as peer:
            room = MAX_HANDSHAKE_BYTES - len(hello(300)) + 300
            peer.sendall(hello(room))
            assert isinstance(answer(peer), wire.Welcome)
        with call(broker) as peer:
            peer.sendall((MAX_HANDSHAKE_BYTES + 1).to_bytes(4, "big"))
            said = answer(peer)
            assert isinstance(said, wire.Refused)
            assert "outside" in said.message


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "record"])
def test_peer_that_never_ends_its_tls_handshake_is_closed(sent: bytes, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    files = authority.certify("127.0.0.1")
    options = ["--tls-cert", files.cert, "--tls-key", files.key]
    with broker_process(tmp_path / "data", None, *options) as broker:
        with call(broker) as peer:
            peer.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                assert peer.recv(1) == b""


def test_tls_and_hello_have_one_deadline_together(tmp_path: Path) -> None:
    """A peer that finishes its TLS handshake and then sends nothing is closed, too."""
    authority = Authority(tmp_path / "authority")
    files = authority.certify("127.0.0.1")
    options = ["--tls-cert", files.cert, "--tls-key", files.key]
    with broker_process(tmp_path / "data", None, *options) as broker:
        context = ssl.create_default_context(cafile=authority.ca)
        began_s = time.monotonic()
        with context.wrap_socket(call(broker), server_hostname="127.0.0.1") as peer:
            said = answer(peer)
            assert isinstance(said, wire.Refused)
            assert "silent for too long" in said.message
        assert 4 < time.monotonic() - began_s < 15
