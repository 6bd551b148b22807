"""The bound on unfinished frames of all connections together."""

from __future__ import annotations

import trio
import trio.testing
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


async def read(intake: Intake, unfinished_bytes: int) -> bytes | bytearray:
    await intake.room(unfinished_bytes)
    return await intake.read()


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
                there += len(await read(self.intake, there))
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
            await read(stalling.intake, 100)
            await database.wait()
            await read(stalling.intake, 100)

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
        assert await read(Intake(inbound, receive_at_once, lambda: None), 0)
        assert trio.current_time() == began_s
        nursery.cancel_scope.cancel()


async def test_frames_that_are_not_read_are_not_cut_off(autojump_clock: MockClock) -> None:
    """A peer is not at fault when its batch waits for the database."""
    inbound = Inbound(MIB, TIMEOUT_S)
    cut: list[str] = []
    slow = Intake(inbound, receive_at_once, lambda: cut.append("slow"))
    other = Intake(inbound, receive_at_once, lambda: cut.append("other"))
    async with trio.open_nursery() as nursery:
        await read(slow, MIB)
        nursery.start_soon(read, other, 100)
        for _ in range(4):
            await trio.sleep(10)  # a batch before this frame waits
            await read(slow, MIB)
        nursery.cancel_scope.cancel()
    assert cut == []


async def test_waiting_requests_count_until_they_are_carried_out(autojump_clock: MockClock) -> None:
    """Invariant 9: seven connections send requests of 1 MiB, of which none ends."""
    inbound = Inbound(16 * MIB, TIMEOUT_S)
    intakes = [Intake(inbound, receive_at_once, lambda: None) for _ in range(7)]

    async def send_requests(intake: Intake) -> None:
        while True:
            for there in range(0, MIB, LARGE_READ_BYTES):
                await read(intake, there)
            intake.frame_ends()
            intake.begin_request(MIB)

    other = Peer(inbound, 15 * MIB)
    async with trio.open_nursery() as nursery:
        for intake in intakes:
            nursery.start_soon(send_requests, intake)
        nursery.start_soon(other.run)
        await trio.sleep(10)
        assert 16 * MIB <= inbound.held_bytes <= 3 * 16 * MIB
        assert inbound.has_waiting
        assert not other.done
        nursery.cancel_scope.cancel()
    again = Peer(inbound, 15 * MIB)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(again.run)
        await trio.sleep(10)
        assert not again.done
        for intake in [*intakes, other.intake]:
            intake.close()
        nursery.cancel_scope.deadline = trio.current_time() + 10
    assert again.done


async def test_connection_that_waits_for_its_own_requests_is_not_the_oldest(
    autojump_clock: MockClock,
) -> None:
    """Invariant 9: its frame is whole, so it need not read on first."""
    inbound = Inbound(3 * LARGE_READ_BYTES, TIMEOUT_S)
    blocked = Intake(inbound, receive_at_once, lambda: None)
    await read(blocked, 100)
    blocked.frame_ends()
    blocked.begin_request(100)
    good = Peer(inbound, 15 * MIB)
    with trio.fail_after(10):
        await good.run()
    assert good.done


async def test_requests_may_end_after_their_connection(autojump_clock: MockClock) -> None:
    """Invariant 9: a peer is cut off while its requests are carried out."""
    inbound = Inbound(MIB, TIMEOUT_S)
    intake = Intake(inbound, receive_at_once, lambda: None)
    await read(intake, 100)
    intake.frame_ends()
    intake.begin_request(10)
    intake.close()
    intake.end_request(10)
    intake.close()
    assert inbound.held_bytes == 0


async def test_connection_waits_until_it_may_read(autojump_clock: MockClock) -> None:
    """Invariant 9: reads that end while it is woken must see that it still waits."""
    inbound = Inbound(LARGE_READ_BYTES, TIMEOUT_S)
    first, second, third = (Intake(inbound, receive_at_once, lambda: None) for _ in range(3))
    await read(first, 100)
    await read(second, 0)
    second.begin_request(10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(third.room, LARGE_READ_BYTES)
        await trio.testing.wait_all_tasks_blocked()
        assert inbound.has_waiting
        second.end_request(10)
        assert inbound.has_waiting
        nursery.cancel_scope.cancel()
    assert not inbound.has_waiting


async def test_connection_between_two_frames_is_not_the_oldest(autojump_clock: MockClock) -> None:
    """Invariant 9: its last frame came in two reads, and it is idle since."""
    inbound = Inbound(2 * LARGE_READ_BYTES, TIMEOUT_S)
    idle, good = Intake(inbound, receive_at_once, lambda: None), Peer(inbound, 15 * MIB)
    for unfinished_bytes in (0, 100, 0):
        await read(idle, unfinished_bytes)
    with trio.fail_after(10):
        await good.run()
    assert good.done


async def test_peer_that_sends_frame_after_frame_is_not_cut_off(autojump_clock: MockClock) -> None:
    """The time for a frame begins anew with each frame, also if no read ends between two."""
    inbound = Inbound(2 * MIB, TIMEOUT_S)
    cut: list[str] = []

    async def slowly(most_bytes: int) -> bytes:
        await trio.sleep(0.9)
        return bytes(100)

    busy = Intake(inbound, slowly, lambda: cut.append("busy"))
    async with trio.open_nursery() as nursery:
        await read(busy, MIB)
        nursery.start_soon(Peer(inbound, 15 * MIB).run)
        for _ in range(20):
            await read(busy, MIB)
            busy.frame_ends()
        nursery.cancel_scope.cancel()
    assert cut == []


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from(["read", "end", "ask", "answer", "close"]),
            st.integers(0, 3),
        ),
        max_size=60,
    )
)
def test_held_bytes_equal_a_recount(steps: list[tuple[int, str, int]]) -> None:
    """Invariant 9: after any sequence of reads, requests and closed connections."""

    async def play() -> None:
        inbound = Inbound(1024 * MIB, TIMEOUT_S)
        intakes = [Intake(inbound, receive_at_once, lambda: None) for _ in range(5)]
        frames, requests = [0] * 5, [0] * 5
        for at, step, size in steps:
            if step == "close":
                intakes[at].close()
                intakes[at] = Intake(inbound, receive_at_once, lambda: None)
                frames[at] = requests[at] = 0
            elif step == "read":
                await read(intakes[at], size)
                frames[at] = size + LARGE_READ_BYTES if size else 0
            elif step == "end":
                intakes[at].frame_ends()
            elif step == "ask":
                intakes[at].begin_request(size)
                frames[at], requests[at] = max(frames[at] - size, 0), requests[at] + size
            elif requests[at]:
                intakes[at].end_request(requests[at])
                requests[at] = 0
            assert [one.held_bytes for one in intakes] == [
                sum(pair) for pair in zip(frames, requests, strict=True)
            ]
            assert inbound.held_bytes == sum(frames) + sum(requests)

    trio.run(play)
