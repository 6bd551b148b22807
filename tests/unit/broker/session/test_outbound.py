"""The output of one connection, without a peer."""

from __future__ import annotations

import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing

from escapement.broker.delivery.output_bound import FRAME_BYTES, OutputBound
from escapement.broker.limits import DEFAULT_LIMITS
from escapement.broker.session.outbound import Outbound
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.protocol.limits import PROTOCOL_VERSION


def outbound(bound: OutputBound, calls: list[str]) -> Outbound:
    """Return an output with room for one frame, which notes each call of ``on_room``."""
    stream, _ = trio.testing.memory_stream_pair()
    return Outbound(
        stream,
        Connection("broker"),
        replace(DEFAULT_LIMITS, outbound_bytes=FRAME_BYTES),
        bound,
        may_deliver=lambda: True,
        output_waits=lambda: bound.is_full,
        requests_wait=lambda: False,
        on_room=lambda: calls.append("room"),
        end=lambda: calls.append("cut off"),
    )


async def test_end_of_a_large_answer_wakes_consumers_and_requests() -> None:
    """Invariant 9: the answer counted while it was made, and was smaller than that."""
    calls: list[str] = []
    output = outbound(OutputBound(8 * FRAME_BYTES), calls)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            async with output.large_answer():
                assert not output.has_room
                nursery.start_soon(output.room)
                await trio.testing.wait_all_tasks_blocked()
    assert calls == ["room"]


async def test_connection_that_is_cut_off_releases_its_queue_at_once() -> None:
    """Invariant 9: its requests may last, and end without effect on the bound."""
    calls: list[str] = []
    bound = OutputBound(8 * FRAME_BYTES)
    output = outbound(bound, calls)
    async with output.large_answer():
        output.cut_off()
        assert (bound.queued_bytes, output.queued_bytes) == (0, 0)
        await output.room()
    assert calls == ["cut off"]
    assert bound.queued_bytes == 0


async def test_room_for_all_wakes_a_connection_that_waits() -> None:
    """Invariant 9."""
    calls: list[str] = []
    bound = OutputBound(FRAME_BYTES)
    output, other = outbound(bound, calls), outbound(bound, [])
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            async with other.large_answer():
                bound.change(0, 2 * FRAME_BYTES)
                assert output.has_room, "for a small frame of messages"
                nursery.start_soon(output.room)
                await trio.testing.wait_all_tasks_blocked()
                assert calls == []
            bound.change(2 * FRAME_BYTES, 0)
    assert calls == ["room"]
    assert bound.queued_bytes == 0


async def test_large_answer_of_a_connection_that_queues_nothing_does_not_wait() -> None:
    """Invariant 9: others fill more than the bound, and their own answers wait."""
    bound = OutputBound(FRAME_BYTES)
    output, full = outbound(bound, []), outbound(bound, [])
    async with trio.open_nursery() as nursery:
        async with full.large_answer():
            nursery.start_soon(full.room)
            bound.change(0, FRAME_BYTES)
            with trio.fail_after(10):
                await output.room()
            nursery.cancel_scope.cancel()
    bound.change(FRAME_BYTES, 0)
    assert bound.queued_bytes == 0


@pytest.mark.parametrize(
    ("each_second", "too_slow"), [(0, True), (65_536, True), (200_000, True), (262_144, False)]
)
@pytest.mark.parametrize("waits", [False, True])
async def test_peer_that_holds_up_an_answer_is_cut_off_if_it_is_slow(
    each_second: int, too_slow: bool, waits: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Invariant 9: 64 KiB in 5 s is enough otherwise."""
    bound = OutputBound(FRAME_BYTES)
    async with slow_reader(bound, each_second) as calls, trio.open_nursery() as nursery:
        bound.change(0, FRAME_BYTES // 2)
        if waits:
            nursery.start_soon(outbound(bound, []).room)
        await trio.sleep(5.1)
        bound.change(FRAME_BYTES // 2, 0)
        nursery.cancel_scope.cancel()
    assert calls == (["cut off"] if waits and too_slow else [])


async def test_answer_takes_the_room_that_it_makes_itself(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 9: it finds no room, and a peer that has been slow before is cut off for it."""
    bound = OutputBound(FRAME_BYTES)
    bound.change(0, FRAME_BYTES // 2)
    answer = outbound(bound, [])
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            async with slow_reader(bound, 0) as calls:
                await trio.sleep(7)
                assert calls == []
                nursery.start_soon(answer.room)
                await trio.sleep(1)
    assert calls == ["cut off"]
    bound.change(FRAME_BYTES // 2, 0)


@pytest.mark.parametrize(("each_second", "too_slow"), [(0, True), (4096, True), (65_536, False)])
@pytest.mark.parametrize("others_wait", [False, True])
async def test_peer_that_reads_too_slowly_is_cut_off_while_others_wait(
    each_second: int, too_slow: bool, others_wait: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Invariant 9: a few bytes now and then do not count as reading."""
    bound = OutputBound(8 * FRAME_BYTES)
    async with slow_reader(bound, each_second, others_wait=others_wait) as calls:
        await trio.sleep(15)
    assert calls == (["cut off"] if others_wait and too_slow else [])


@asynccontextmanager
async def slow_reader(
    bound: OutputBound, each_second: int, *, others_wait: bool = False
) -> AsyncIterator[list[str]]:
    """Run an output with 2 MiB. Yield a list that notes when its peer is cut off.

    Args:
      each_second: the bytes that the peer reads in a second, on average. It reads each 1.5 s.
    """
    ours, theirs = trio.socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    protocol = Connection("broker")
    protocol.receive_data(b"".join(Connection("client").send(wire.Hello(PROTOCOL_VERSION, "", {}))))
    assert len(list(protocol.events())) == 1
    calls: list[str] = []

    async def read() -> None:
        while True:
            await trio.sleep(1.5)
            left_bytes = each_second * 3 // 2
            while left_bytes:
                left_bytes -= len(await theirs.recv(left_bytes))

    async with trio.open_nursery() as nursery:

        def cut_off() -> None:
            calls.append("cut off")
            nursery.cancel_scope.cancel()

        output = Outbound(
            trio.SocketStream(ours),
            protocol,
            DEFAULT_LIMITS,
            bound,
            may_deliver=lambda: True,
            output_waits=lambda: others_wait,
            requests_wait=lambda: False,
            on_room=lambda: None,
            end=cut_off,
        )
        output.send(wire.Welcome(PROTOCOL_VERSION, "b", "o", {}))
        output.answer(wire.AdminReply(1, "x" * (2 * FRAME_BYTES)))
        nursery.start_soon(output.run)
        nursery.start_soon(read)
        yield calls
        nursery.cancel_scope.cancel()
    output.discard()
    ours.close()
    theirs.close()


async def test_connection_does_not_keep_what_it_has_written(autojump_clock: object) -> None:
    """Invariant 9: its peer has read everything, and asks for nothing more."""
    tracemalloc.start()
    try:
        async with slow_reader(OutputBound(8 * FRAME_BYTES), 4 * FRAME_BYTES) as calls:
            await trio.sleep(5)
            held_bytes, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert calls == []
    assert most_bytes > 2 * FRAME_BYTES > 4 * held_bytes
