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
from escapement.broker.session.request_memory import RequestMemory, Reservations

MIB = 1 << 20
TIMEOUT_S = 5.0


async def receive_at_once(most_bytes: int) -> bytes:
    return bytes(most_bytes)


async def read(intake: Intake, unfinished_bytes: int) -> bytes | bytearray:
    await intake.room(unfinished_bytes, LARGE_READ_BYTES)
    return await intake.read()


def connection(inbound: Inbound) -> Intake:
    """Return a connection whose peer sends as much as is received, and has no requests."""
    return Intake(inbound, no_requests(), receive_at_once, lambda: None)


def no_requests() -> Reservations:
    return Reservations(RequestMemory(MIB))


class Peer:
    """A connection that sends a frame of ``size_bytes`` and, if it stalls, not the last byte."""

    def __init__(
        self,
        inbound: Inbound,
        size_bytes: int,
        *,
        stalls: bool = False,
        reservations: Reservations | None = None,
    ) -> None:
        self.scope = trio.CancelScope()
        self.cut = trio.Event()
        self.intake = Intake(inbound, reservations or no_requests(), self.receive, self.cut_off)
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
        self.intake.release()


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
        assert await read(connection(inbound), 0)
        assert trio.current_time() == began_s
        nursery.cancel_scope.cancel()


async def test_frames_that_are_not_read_are_not_cut_off(autojump_clock: MockClock) -> None:
    """A peer is not at fault when its batch waits for the database."""
    inbound = Inbound(MIB, TIMEOUT_S)
    cut: list[str] = []
    slow = Intake(inbound, no_requests(), receive_at_once, lambda: cut.append("slow"))
    other = Intake(inbound, no_requests(), receive_at_once, lambda: cut.append("other"))
    async with trio.open_nursery() as nursery:
        await read(slow, MIB)
        nursery.start_soon(read, other, 100)
        for _ in range(4):
            await trio.sleep(10)  # a batch before this frame waits
            await read(slow, MIB)
        nursery.cancel_scope.cancel()
    assert cut == []


async def test_whole_frames_count_until_they_are_carried_out(autojump_clock: MockClock) -> None:
    """Invariant 9: seven connections send frames of 15 MiB, which wait for the database."""
    inbound, database = Inbound(16 * MIB, TIMEOUT_S), trio.Event()

    async def send_a_frame(intake: Intake) -> None:
        for there in range(0, 15 * MIB, LARGE_READ_BYTES):
            await read(intake, there)
        intake.frame_ends()
        await database.wait()
        intake.release()

    other = Peer(inbound, 15 * MIB)
    async with trio.open_nursery() as nursery:
        for _ in range(7):
            nursery.start_soon(send_a_frame, connection(inbound))
        nursery.start_soon(other.run)
        await trio.sleep(10)
        assert 15 * MIB <= inbound.held_bytes <= 4 * 16 * MIB
        assert inbound.has_waiting
        assert not other.done
        database.set()
    assert other.done
    assert inbound.held_bytes == 0


async def test_connection_that_waits_for_request_memory_holds_up_no_frames(
    autojump_clock: MockClock,
) -> None:
    """Invariant 9: its frame was the oldest, and counted as large."""
    inbound, memory = Inbound(3 * LARGE_READ_BYTES, TIMEOUT_S), RequestMemory(MIB)
    await Reservations(memory).reserve(2 * MIB)
    blocked = Intake(inbound, Reservations(memory), receive_at_once, lambda: None)
    good = Peer(inbound, 15 * MIB)
    async with trio.open_nursery() as nursery:
        await read(blocked, 2 * LARGE_READ_BYTES)
        nursery.start_soon(blocked.reserve, 2 * MIB)
        await trio.testing.wait_all_tasks_blocked()
        assert memory.has_waiting
        with trio.fail_after(10):
            await good.run()
        assert good.done
        nursery.cancel_scope.cancel()


async def test_peer_that_stalls_with_memory_that_others_need_is_cut_off(
    autojump_clock: MockClock,
) -> None:
    """Invariant 9: no frame waits, only a request."""
    inbound, memory = Inbound(64 * MIB, TIMEOUT_S), RequestMemory(MIB)
    stalling, harmless = (
        Peer(inbound, MIB, stalls=True, reservations=Reservations(memory)) for _ in range(2)
    )
    await stalling.intake.reserve(2 * MIB)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stalling.run)
        nursery.start_soon(harmless.run)
        await trio.sleep(10)
        assert not stalling.cut.is_set()
        nursery.start_soon(Reservations(memory).reserve, 2 * MIB)
        with trio.fail_after(TIMEOUT_S):
            await stalling.cut.wait()
        assert not harmless.cut.is_set()
        nursery.cancel_scope.cancel()


async def test_read_within_a_frame_takes_little_of_the_next_one(autojump_clock: MockClock) -> None:
    """Invariant 9: the rest of a read does not count, as a read between two frames does not."""
    inbound = Inbound(MIB, TIMEOUT_S)
    intake = connection(inbound)
    await intake.room(1000, 100)
    assert len(await intake.read()) == SMALL_READ_BYTES + 100
    intake.release()
    assert inbound.held_bytes == 0


async def test_connection_waits_until_it_may_read(autojump_clock: MockClock) -> None:
    """Invariant 9: reads that end while it is woken must see that it still waits."""
    inbound = Inbound(LARGE_READ_BYTES, TIMEOUT_S)
    first, second, third = (connection(inbound) for _ in range(3))
    await first.room(100, 10)
    await second.room(10, 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(third.room, LARGE_READ_BYTES, LARGE_READ_BYTES)
        await trio.testing.wait_all_tasks_blocked()
        assert inbound.has_waiting
        second.release()
        assert inbound.has_waiting
        nursery.cancel_scope.cancel()
    assert not inbound.has_waiting


async def test_connection_between_two_frames_is_not_the_oldest(autojump_clock: MockClock) -> None:
    """Invariant 9: its last frame came in two reads, and it is idle since."""
    inbound = Inbound(2 * LARGE_READ_BYTES, TIMEOUT_S)
    idle, good = connection(inbound), Peer(inbound, 15 * MIB)
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

    busy = Intake(inbound, no_requests(), slowly, lambda: cut.append("busy"))
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
            st.sampled_from(["read", "end", "release"]),
            st.integers(0, 3),
        ),
        max_size=60,
    )
)
def test_held_bytes_equal_a_recount(steps: list[tuple[int, str, int]]) -> None:
    """Invariant 9: after any sequence of reads and whole frames."""

    async def play() -> None:
        inbound = Inbound(1024 * MIB, TIMEOUT_S)
        intakes = [connection(inbound) for _ in range(5)]
        frames = [0] * 5
        for at, step, size in steps:
            if step == "release":
                intakes[at].release()
                frames[at] = 0
            elif step == "read":
                await read(intakes[at], size)
                frames[at] = size + LARGE_READ_BYTES if size else 0
            else:
                intakes[at].frame_ends()
            assert [one.frame_bytes for one in intakes] == frames
            assert inbound.held_bytes == sum(frames)

    trio.run(play)
