"""When a node sends its clients to other nodes, because its leases have expired."""

from __future__ import annotations

import trio
import trio.testing

from escapement.broker.node.node_directory import NodeDirectory
from escapement.broker.node.reception import Reception
from escapement.storage.ownership import LiveBroker, Ownership

LEASE_S = 10.0
LOOK_S = 1.0


class Leases:
    """The leases of a node, which expire together."""

    def __init__(self) -> None:
        self._until_s = 0.0
        self.renew()

    def renew(self) -> None:
        self._until_s = trio.current_time() + LEASE_S

    def left_ms(self) -> int:
        return max(0, round((self._until_s - trio.current_time()) * 1000))


def directory_of_two() -> NodeDirectory:
    """Return the directory of node "a", which owns bundle 0. Node "b" lives, too."""
    found = NodeDirectory("a")
    nodes = {one: LiveBroker(one, "", one, f"{one}:7650", False, 1000) for one in "ab"}
    found.learn(nodes, {0: Ownership(0, "a", "", 5, False)})
    return found


async def test_suspended_process_that_renews_at_once_keeps_its_clients(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q8: it finds its leases expired when it goes on, and the renewal takes a moment."""
    found, leases = directory_of_two(), Leases()
    reception = Reception(found, "a:7650", list)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reception.watch, leases.left_ms, lambda broker: None, LOOK_S)
        for suspended_s in (LEASE_S, 3 * LEASE_S, 100 * LEASE_S):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(suspended_s)
            await trio.testing.wait_all_tasks_blocked()
            assert leases.left_ms() == 0
            mock_clock.jump(LOOK_S / 2)
            leases.renew()
            for _ in range(5):
                await trio.testing.wait_all_tasks_blocked()
                assert not found.is_cut_off
                mock_clock.jump(LOOK_S)
        nursery.cancel_scope.cancel()


async def test_node_is_cut_off_at_the_second_look_at_expired_leases_until_it_renews(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q8."""
    found, leases = directory_of_two(), Leases()
    reception = Reception(found, "a:7650", list)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reception.watch, leases.left_ms, lambda broker: None, LOOK_S)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(LEASE_S)
        for is_cut_off in (False, True, True):
            await trio.testing.wait_all_tasks_blocked()
            assert found.is_cut_off is is_cut_off
            mock_clock.jump(LOOK_S)
        leases.renew()
        await trio.testing.wait_all_tasks_blocked()
        assert not found.is_cut_off
        nursery.cancel_scope.cancel()
