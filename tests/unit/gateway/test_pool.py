"""A pool lends values by key, and bounds how many are open."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from escapement.errors import Busy, Disconnected, Unauthenticated
from escapement.gateway.pool import Pool

IDLE_S = 60.0


class Value:
    """A value of a key."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.broken = False


class Opened:
    """A pool, and the keys of the values that it has opened and closed."""

    def __init__(self, most: int = 2) -> None:
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.open_s = self.close_s = 0.0
        self.refusal: Exception | None = None
        self.pool: Pool[Value] = Pool(
            "values", most, IDLE_S, self._open, self._close, lambda value: value.broken
        )

    async def _open(self, key: str) -> Value:
        await trio.sleep(self.open_s)
        if self.refusal is not None:
            raise self.refusal
        self.opened.append(key)
        return Value(key)

    async def _close(self, value: Value) -> None:
        await trio.sleep(self.close_s)
        self.closed.append(value.key)

    async def touch(self, *keys: str) -> None:
        for key in keys:
            async with self.pool.use(key) as value:
                assert value.key == key


async def test_users_of_a_key_share_one_value(autojump_clock: trio.testing.MockClock) -> None:
    """B15: users who come while a value is being opened wait for the first one to open it."""
    of = Opened()
    of.open_s = 1
    lent: list[Value] = []

    async def use() -> None:
        async with of.pool.use("a") as value:
            lent.append(value)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(use)
    assert of.opened == ["a"]
    assert len(lent) == 5
    assert len(set(map(id, lent))) == 1


async def test_value_that_was_used_longest_ago_makes_room() -> None:
    """B15: a full pool closes a value without users. If all have users, it is busy."""
    of = Opened()
    await of.touch("a", "b", "a", "c")
    assert of.closed == ["b"]
    async with of.pool.use("a"):
        await of.touch("d")
        assert of.closed == ["b", "c"]
        async with of.pool.use("d"):
            with pytest.raises(Busy, match="2 values"):
                await of.touch("e")
            await of.touch("a")
    await of.touch("e")
    assert of.closed == ["b", "c", "d"]
    assert [value.key for value in of.pool.values()] == ["a", "e"]


async def test_pool_stays_bounded_while_values_close(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """B15: users who come while another one makes room do not exceed the bound."""
    of = Opened()
    of.close_s = 1
    await of.touch("a", "b")
    refused: list[str] = []

    async def use(key: str) -> None:
        try:
            async with of.pool.use(key):
                assert len(of.pool.values()) <= 2
                await trio.sleep(10)
        except Busy:
            refused.append(key)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(use, "c")
        await trio.sleep(0.5)  # "a" is closing
        for key in ("d", "e"):
            nursery.start_soon(use, key)
    assert len(refused) == 1
    assert sorted(of.closed) == sorted(["a", "b", *refused])
    assert len(of.pool.values()) == 2


async def test_value_without_users_closes_after_a_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """B15: idle values close. The time counts from the end of the last use."""
    of = Opened()
    async with of.pool.use("a"):
        await of.touch("b")
        await trio.sleep(IDLE_S)
        await of.pool.close_idle()
        assert of.closed == ["b"]
    await trio.sleep(IDLE_S - 1)
    await of.pool.close_idle()
    assert of.closed == ["b"]
    await trio.sleep(1)
    await of.pool.close_idle()
    assert of.closed == ["b", "a"]
    await of.touch("a", "b")
    await of.pool.close_all()
    assert sorted(of.closed[2:]) == ["a", "b"]
    assert of.pool.values() == []


async def test_broken_value_is_replaced() -> None:
    """B15: a value that broke in or after its use is not lent again."""
    of = Opened()
    async with of.pool.use("a") as value:
        value.broken = True
    await of.touch("a")
    assert of.opened == ["a", "a"]
    async with of.pool.use("a") as unbroken:
        pass
    unbroken.broken = True
    async with of.pool.use("a") as third:
        assert not third.broken


async def test_failed_and_cancelled_opening_leaves_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """B15: if the user who opens a value fails or is cancelled, the next one opens it."""
    of = Opened()
    of.refusal = Disconnected("away")
    with pytest.raises(Disconnected):
        await of.touch("a")
    of.refusal = None
    of.open_s = 1
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:

        async def leave_early() -> None:
            with trio.move_on_after(0.5):
                await of.touch("a")

        nursery.start_soon(leave_early)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(of.touch, "a")
    assert of.opened == ["a"]
    assert trio.current_time() - began_s == 1.5
    with trio.move_on_after(0.5):
        await of.touch("b")
    assert [value.key for value in of.pool.values()] == ["a"]
    await of.touch("b", "a")
    of.refusal = Unauthenticated("wrong")
    with pytest.raises(Unauthenticated):
        await of.touch("c")
    assert of.closed == [], "a value that cannot be opened takes no room"
