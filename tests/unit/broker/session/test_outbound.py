"""The output of one connection, without a peer."""

from __future__ import annotations

from dataclasses import replace

import trio
import trio.testing

from escapement.broker.limits import DEFAULT_LIMITS
from escapement.broker.session.outbound import Outbound
from escapement.broker.session.output_bound import FRAME_BYTES, OutputBound
from escapement.protocol.connection import Connection


def outbound(bound: OutputBound, calls: list[str]) -> Outbound:
    """Return an output with room for one frame, which notes each call of ``on_room``."""
    stream, _ = trio.testing.memory_stream_pair()
    return Outbound(
        stream,
        Connection("broker"),
        replace(DEFAULT_LIMITS, outbound_bytes=FRAME_BYTES),
        bound,
        may_deliver=lambda: True,
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
                assert not output.has_room
                nursery.start_soon(output.room)
                await trio.testing.wait_all_tasks_blocked()
                assert calls == []
            bound.change(FRAME_BYTES, 0)
    assert calls == ["room"]
    assert bound.queued_bytes == 0
