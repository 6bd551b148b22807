"""The stream under TLS tells its session about each write, and before each wait."""

from __future__ import annotations

import pytest
import trio

from escapement.broker.session.tls_transport import TlsTransport

SIZE = 4_000_000


async def pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    ours, theirs = trio.socket.socketpair()
    return trio.SocketStream(ours), trio.SocketStream(theirs)


async def test_session_is_asked_before_each_wait_and_told_what_was_accepted() -> None:
    ours, theirs = await pair()
    transport = TlsTransport(ours)
    accepted: list[int] = []
    waits = 0

    async def wait() -> None:
        nonlocal waits
        waits += 1
        await ours.wait_send_all_might_not_block()

    async def drain() -> None:
        left = SIZE
        while left:
            left -= len(await theirs.receive_some(65_536))

    transport.wait, transport.accepted = wait, accepted.append
    with trio.fail_after(30):
        async with ours, theirs, trio.open_nursery() as nursery:
            nursery.start_soon(drain)
            await transport.send_all(bytes(SIZE))
    assert sum(accepted) == SIZE
    assert waits > 0


async def test_session_can_end_a_write_to_a_slow_peer() -> None:
    """Invariant 9: a peer that does not read is cut off, also with TLS."""
    ours, theirs = await pair()
    transport = TlsTransport(ours)
    scope = trio.CancelScope()

    async def cut_off() -> None:
        scope.cancel()
        await trio.lowlevel.checkpoint()

    transport.wait = cut_off
    async with ours, theirs:
        with trio.fail_after(30), scope:
            await transport.send_all(bytes(SIZE))
    assert scope.cancelled_caught


async def test_write_to_a_peer_that_is_gone_breaks_the_stream() -> None:
    ours, theirs = await pair()
    await theirs.aclose()
    async with ours:
        with pytest.raises(trio.BrokenResourceError):
            await TlsTransport(ours).send_all(b"x")
