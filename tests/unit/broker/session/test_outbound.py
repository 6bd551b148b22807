"""The output of one connection, without a peer."""

from __future__ import annotations

import socket
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
        input_waits=lambda: False,
        on_room=lambda: calls.append("room"),
        cut_off=lambda: calls.append("cut off"),
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


async def test_room_for_all_wakes_a_connection_that_waits() -> None:
    """Invariant 9."""
    calls: list[str] = []
    bound = OutputBound(FRAME_BYTES)
    output, other = outbound(bound, calls), outbound(bound, [])
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            async with other.large_answer():
                bound.change(0, FRAME_BYTES)
                assert output.has_room, "for a small frame of messages"
                nursery.start_soon(output.room)
                await trio.testing.wait_all_tasks_blocked()
                assert calls == []
            bound.change(FRAME_BYTES, 0)
    assert calls == ["room"]
    assert bound.queued_bytes == 0


@pytest.mark.parametrize(("each_second", "too_slow"), [(0, True), (4096, True), (65_536, False)])
@pytest.mark.parametrize("others_wait", [False, True])
async def test_peer_that_reads_too_slowly_is_cut_off_while_others_wait(
    each_second: int, too_slow: bool, others_wait: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Invariant 9: a few bytes now and then do not count as reading."""
    ours, theirs = trio.socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    protocol = Connection("broker")
    protocol.receive_data(b"".join(Connection("client").send(wire.Hello(PROTOCOL_VERSION, "", {}))))
    assert len(list(protocol.events())) == 1
    calls: list[str] = []
    async with trio.open_nursery() as nursery:

        def cut_off() -> None:
            calls.append("cut off")
            nursery.cancel_scope.cancel()

        output = Outbound(
            trio.SocketStream(ours),
            protocol,
            DEFAULT_LIMITS,
            OutputBound(8 * FRAME_BYTES),
            may_deliver=lambda: True,
            output_waits=lambda: others_wait,
            input_waits=lambda: False,
            on_room=lambda: None,
            cut_off=cut_off,
        )
        output.send(wire.Welcome(PROTOCOL_VERSION, "b", "o", {}))
        output.answer(wire.AdminReply(1, "x" * (2 * FRAME_BYTES)))
        nursery.start_soon(output.run)
        for _ in range(15):
            await trio.sleep(1)
            left_bytes = each_second
            while left_bytes:
                left_bytes -= len(await theirs.recv(left_bytes))
        nursery.cancel_scope.cancel()
    ours.close()
    theirs.close()
    assert calls == (["cut off"] if others_wait and too_slow else [])
