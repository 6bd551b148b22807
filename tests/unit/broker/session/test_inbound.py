"""The bound on unfinished frames of all connections together."""

from __future__ import annotations

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from escapement.broker.session.inbound import (
    LARGE_READ_BYTES,
    SMALL_READ_BYTES,
    Inbound,
    Intake,
)

MIB = 1 << 20
TIMEOUT_S = 5.0


async def receive_at_once(most_bytes: int) -> bytes:
    return bytes(most_bytes)


class Peer:
    """A connection that sends a frame of ``size_bytes`` and, if it stalls, not the last byte."""

    def __init__(self, inbound: Inbound, size_bytes: int, *, stalls: bool = False) -> None:
        self.scope = trio.CancelScope()
        self.cut = trio.Event()
        self.intake = Intake(inbound, self.receive, self.cut_off)
        self.left_bytes = size_bytes
        self.stalls = stalls

    def cut_off(self) -> None:
        self.cut.set()
        self.scope.cancel()

    @property
    def done(self) -> bool:
        return self.left_bytes == 0

    async def receive(self, most_bytes: int) -> bytes:
        if self.stalls and most_bytes >= self.left_bytes:
            await trio.sleep_forever()
        await trio.sleep(0.001)
        data = bytes(min(most_bytes, self.left_bytes))
        self.left_bytes -= len(data)
        return data

    async def run(self) -> None:
        with self.scope:
            there = 0
            while not self.done:
                there += len(await self.intake.read(there))
        self.intake.close()


async def test_good_peers_finish_while_many_others_stall(autojump_clock: MockClock) -> None:
    """Invariant 9: 120 unfinished frames of 15 MiB stay within the bound and are cut off."""
    inbound, most = Inbound(64 * MIB, TIMEOUT_S), 0
    bad = [Peer(inbound, 15 * MIB, stalls=True) for _ in range(120)]
    good = [Peer(inbound, size) for size in (100, MIB, 15 * MIB) for _ in range(20)]
    async with trio.open_nursery() as nursery:
        for peer in bad:
            nursery.start_soon(peer.run)
        await trio.sleep(1)
        for peer in good:
            nursery.start_soon(peer.run)
        while not all(peer.done for peer in good):
            most = max(most, inbound.held_bytes)
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    # The shares, the oldest frame, and one small read of each connection.
    assert most <= 2 * 64 * MIB + 16 * MIB + len(bad + good) * SMALL_READ_BYTES
    assert any(peer.cut.is_set() for peer in bad)
    assert not any(peer.cut.is_set() for peer in good)
    assert inbound.held_bytes == 0


async def test_peer_that_stalls_after_others_began_to_wait_is_cut_off(
    autojump_clock: MockClock,
) -> None:
    """Invariant 9: those that wait cannot know when the read begins that stalls."""
    inbound = Inbound(LARGE_READ_BYTES, TIMEOUT_S)
    stalling = Peer(inbound, 2 * LARGE_READ_BYTES, stalls=True)
    good = Peer(inbound, 15 * MIB)
    database = trio.Event()

    async def stall() -> None:
        with stalling.scope:
            await stalling.intake.read(100)
            await database.wait()
            await stalling.intake.read(100)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stall)
        await trio.sleep(1)
        nursery.start_soon(good.run)
        await trio.sleep(10)
        assert not good.done
        database.set()
        with trio.fail_after(TIMEOUT_S):
            await stalling.cut.wait()
    assert good.done


async def test_small_requests_never_wait(autojump_clock: MockClock) -> None:
    """Invariant 9: a connection between two frames may always read a little."""
    inbound = Inbound(MIB, TIMEOUT_S)
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(Peer(inbound, 15 * MIB, stalls=True).run)
        await trio.sleep(1)
        began_s = trio.current_time()
        assert await Intake(inbound, receive_at_once, lambda: None).read(0)
        assert trio.current_time() == began_s
        nursery.cancel_scope.cancel()


async def test_frames_that_are_not_read_are_not_cut_off(autojump_clock: MockClock) -> None:
    """A peer is not at fault when its batch waits for the database."""
    inbound = Inbound(MIB, TIMEOUT_S)
    cut: list[str] = []
    slow = Intake(inbound, receive_at_once, lambda: cut.append("slow"))
    other = Intake(inbound, receive_at_once, lambda: cut.append("other"))
    async with trio.open_nursery() as nursery:
        await slow.read(MIB)
        nursery.start_soon(other.read, 100)
        for _ in range(4):
            await trio.sleep(10)  # a batch before this frame waits
            await slow.read(MIB)
        nursery.cancel_scope.cancel()
    assert cut == []


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3) | st.none()), max_size=40))
def test_held_bytes_equal_a_recount(steps: list[tuple[int, int | None]]) -> None:
    """Invariant 9: after any sequence of reads and closed connections."""

    async def play() -> None:
        inbound = Inbound(1024 * MIB, TIMEOUT_S)
        intakes = [Intake(inbound, receive_at_once, lambda: None) for _ in range(5)]
        model = [0] * 5
        for at, size in steps:
            if size is None:
                intakes[at].close()
                model[at] = 0
            else:
                await intakes[at].read(size)
                model[at] = size + LARGE_READ_BYTES if size else 0
            assert [one.held_bytes for one in intakes] == model
            assert inbound.held_bytes == sum(model)

    trio.run(play)
