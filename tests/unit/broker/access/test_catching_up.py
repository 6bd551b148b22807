"""The looks at the version of the catalog: how many there are, and what they show."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from escapement.broker.access.catching_up import INTERVAL_S, CatchingUp
from escapement.errors import StorageUnavailable


class Catalog:
    """A catalog that takes time to read."""

    def __init__(self) -> None:
        self.version = 1
        self.seen = 0  # the version that the broker has
        self.looks: list[float] = []
        self.refreshes = 0
        self.fails = False
        self.catching_up = CatchingUp(self._read, self._refresh)

    async def _read(self) -> int:
        self.looks.append(trio.current_time())
        await trio.sleep(0.1)
        if self.fails:
            raise StorageUnavailable("down")
        return self.version

    async def _refresh(self) -> None:
        self.refreshes += 1
        version = self.version
        await trio.sleep(0.1)
        self.seen = version

    async def use(self) -> None:
        """Change the catalog, and use the change at once."""
        self.version += 1
        version = self.version
        await self.catching_up.catch_up()
        assert self.seen >= version


async def test_every_change_is_seen_with_one_look_in_an_interval(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """B8: also a change that comes while another one is read."""
    catalog = Catalog()
    async with trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(catalog.use)
            await trio.sleep(0.01)
    assert catalog.looks == [number * INTERVAL_S for number in range(4)]


async def test_looks_without_a_change_read_no_tables(
    autojump_clock: trio.testing.MockClock,
) -> None:
    catalog = Catalog()
    for _ in range(5):
        await catalog.catching_up.catch_up()
    assert (len(catalog.looks), catalog.refreshes) == (5, 1)


async def test_a_look_that_fails_is_repeated_by_the_next_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    catalog = Catalog()
    catalog.fails = True
    with pytest.raises(StorageUnavailable):
        await catalog.catching_up.catch_up()
    catalog.fails = False
    await catalog.use()


async def test_requests_that_share_a_look_fail_with_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """O1: none goes on with tokens and grants that were not read."""
    catalog = Catalog()
    catalog.fails = True
    failed = []

    async def use() -> None:
        with pytest.raises(StorageUnavailable):
            await catalog.catching_up.catch_up()
        failed.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(use)
    assert failed == [pytest.approx(0.1)] * 3


async def test_request_that_waits_for_a_cancelled_look_looks_itself(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """O1: a client that leaves does not let another one in without a look."""
    catalog = Catalog()
    await catalog.catching_up.catch_up()
    async with trio.open_nursery() as nursery, trio.open_nursery() as leaving:
        leaving.start_soon(catalog.catching_up.catch_up)
        await trio.testing.wait_all_tasks_blocked()  # until the next look may begin
        nursery.start_soon(catalog.use)
        await trio.sleep(INTERVAL_S)
        assert (len(catalog.looks), catalog.refreshes) == (2, 2)  # it has not ended
        leaving.cancel_scope.cancel()
    assert (len(catalog.looks), catalog.refreshes) == (3, 3)
