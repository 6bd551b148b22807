"""The bound on the memory of the requests of all connections."""

from __future__ import annotations

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from escapement.broker.session.request_memory import FREE_BYTES, RequestMemory, Reservations

MIB = 1 << 20


async def carry_out(one: Reservations, size_bytes: int, lasts_s: float) -> None:
    await one.reserve(size_bytes)
    taken_bytes = one.begin()
    await trio.sleep(lasts_s)
    one.end(taken_bytes)


async def test_large_requests_of_many_connections_follow_each_other(
    autojump_clock: MockClock,
) -> None:
    """Invariant 9: 50 peers finish a request at once that takes 20 MiB when it is decoded."""
    memory, most_bytes = RequestMemory(32 * MIB), 0
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(carry_out, Reservations(memory), 20 * MIB, 1.0)
        while len(nursery.child_tasks):
            await trio.sleep(0.1)
            most_bytes = max(most_bytes, memory.reserved_bytes)
    assert 20 * MIB - FREE_BYTES <= most_bytes <= 2 * 32 * MIB
    assert trio.current_time() - began_s < 51
    assert memory.reserved_bytes == 0


async def test_request_larger_than_the_bound_is_carried_out_alone(
    autojump_clock: MockClock,
) -> None:
    memory = RequestMemory(MIB)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(carry_out, Reservations(memory), 5 * MIB, 1.0)
        for second in range(3):
            await trio.sleep(0.5)
            assert memory.reserved_bytes == 5 * MIB - FREE_BYTES
            assert memory.has_waiting == (second < 2)
            await trio.sleep(0.5)
    assert not memory.has_waiting


async def test_large_request_is_not_overtaken_for_ever(autojump_clock: MockClock) -> None:
    """Invariant 9: requests that fit into the bound wait behind it, unless they are small."""
    memory = RequestMemory(4 * MIB)
    holder, large = Reservations(memory), Reservations(memory)
    others = [Reservations(memory) for _ in range(20)]
    await holder.reserve(3 * MIB)
    for other in others[:10]:
        await other.reserve(FREE_BYTES + 1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(large.reserve, 2 * MIB)
        await trio.testing.wait_all_tasks_blocked()
        assert others[10].may_reserve(FREE_BYTES + 1000), "less than its share"
        assert not others[11].may_reserve(MIB // 2)
        holder.close()
    assert large.reserved_bytes == 2 * MIB
    assert others[11].may_reserve(MIB // 2)


async def test_large_request_is_carried_out_although_smaller_ones_never_cease(
    autojump_clock: MockClock,
) -> None:
    """Invariant 9: each of 28 peers sends its next request when the last one is carried out."""
    memory = RequestMemory(32 * MIB)

    async def be_busy(begin_s: float) -> None:
        await trio.sleep(begin_s)
        one = Reservations(memory)
        while True:
            await carry_out(one, MIB, 1.0)

    async with trio.open_nursery() as nursery:
        for number in range(28):
            nursery.start_soon(be_busy, number / 28)
        await trio.sleep(5)
        with trio.move_on_after(60) as patience:
            await carry_out(Reservations(memory), 20 * MIB, 1.0)
        nursery.cancel_scope.cancel()
    assert not patience.cancelled_caught


async def test_others_go_on_when_the_connection_that_waits_the_longest_ends() -> None:
    """Invariant 9: it leaves them nothing to share while it waits."""
    memory = RequestMemory(4 * MIB)
    await Reservations(memory).reserve(MIB)
    smaller = Reservations(memory)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            first = trio.CancelScope()

            async def wait_first() -> None:
                with first:
                    await Reservations(memory).reserve(4 * MIB)

            nursery.start_soon(wait_first)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(smaller.reserve, MIB)
            await trio.testing.wait_all_tasks_blocked()
            assert smaller.reserved_bytes == 0
            first.cancel()
    assert smaller.reserved_bytes == MIB
    assert not memory.has_waiting


async def test_all_that_fit_go_on_when_memory_is_freed() -> None:
    """Invariant 9: the event loop may wake them in another order than they wait."""
    for _ in range(20):
        memory = RequestMemory(4 * MIB)
        holder = Reservations(memory)
        await holder.reserve(4 * MIB)
        for _ in range(8):
            await Reservations(memory).reserve(FREE_BYTES + 1000)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(Reservations(memory).reserve, MIB)
                await trio.testing.wait_all_tasks_blocked()
                assert memory.has_waiting
                holder.close()


async def test_small_requests_never_wait(autojump_clock: MockClock) -> None:
    """Invariant 9: each connection has some memory beyond the bound."""
    memory = RequestMemory(MIB)
    await Reservations(memory).reserve(10 * MIB)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Reservations(memory).reserve, 10 * MIB)
        await trio.testing.wait_all_tasks_blocked()
        began_s = trio.current_time()
        for _ in range(100):
            one = Reservations(memory)
            for _ in range(4):
                await one.reserve(FREE_BYTES // 4)
                one.begin()
            assert not one.may_reserve(MIB)
        assert trio.current_time() == began_s
        nursery.cancel_scope.cancel()


async def test_memory_is_freed_once_when_a_connection_ends(autojump_clock: MockClock) -> None:
    """Invariant 9: requests may end after their connection was cut off."""
    memory = RequestMemory(MIB)
    one = Reservations(memory)
    await one.reserve(2 * MIB)
    carried_out_bytes = one.begin()
    one.close()
    one.end(carried_out_bytes)
    assert one.reserved_bytes == 0
    assert memory.reserved_bytes == 0


async def test_frame_that_is_not_read_to_its_end_frees_its_memory(
    autojump_clock: MockClock,
) -> None:
    """Invariant 9: the session still writes its last words, and its requests go on."""
    memory = RequestMemory(4 * MIB)
    one = Reservations(memory)
    await one.reserve(MIB)
    one.begin()
    await one.reserve(2 * MIB)
    await one.reserve(2 * MIB)
    assert one.reserved_bytes == 3 * MIB
    one.give_up()
    one.give_up()
    assert one.reserved_bytes == MIB


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from(["reserve", "begin", "end", "give up", "close"]),
            st.integers(1, 3 * FREE_BYTES),
        ),
        max_size=60,
    )
)
def test_reserved_bytes_equal_a_recount(steps: list[tuple[int, str, int]]) -> None:
    """Invariant 9: after any sequence of requests and closed connections."""

    async def play() -> None:
        memory = RequestMemory(1024 * MIB)
        ones = [Reservations(memory) for _ in range(5)]
        nexts, begun = [0] * 5, [[0] for _ in range(5)]
        for at, step, size in steps:
            if step == "close":
                ones[at].close()
                ones[at], nexts[at], begun[at] = Reservations(memory), 0, [0]
            elif step == "reserve":
                await ones[at].reserve(size)
                nexts[at] = nexts[at] or size
            elif step == "begin":
                assert ones[at].begin() == nexts[at]
                begun[at].append(nexts[at])
                nexts[at] = 0
            elif step == "give up":
                ones[at].give_up()
                nexts[at] = 0
            else:
                ones[at].end(begun[at].pop() if len(begun[at]) > 1 else 0)
            held = [sum(own) + one for own, one in zip(begun, nexts, strict=True)]
            assert [one.reserved_bytes for one in ones] == held
            assert memory.reserved_bytes == sum(max(one - FREE_BYTES, 0) for one in held)

    trio.run(play)
