"""The brokers of a process, as its side port shows them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

import trio
import trio.testing
from trio.testing import MockClock

from escapement.broker.broker import Broker
from escapement.broker.side_port.shown import Shown
from escapement.errors import ShuttingDown


class Ending:
    """The parts of a broker that ``Shown`` uses."""

    def __init__(self, bundle_id: int) -> None:
        self.bundle_id = bundle_id
        self.end: Callable[[], Awaitable[None]]

    def on_end(self, ending: Callable[[], Awaitable[None]]) -> None:
        self.end = ending


async def test_brokers_that_end_together_each_wait_for_their_own_requests(
    autojump_clock: MockClock,
) -> None:
    """A node that stops ends all its brokers at once. A request may run on in a thread."""
    shown, brokers = Shown(), [Ending(0), Ending(1)]
    ended: list[tuple[int, float]] = []

    async def use(broker: Broker, runs_on_s: float) -> None:
        with suppress(ShuttingDown), shown.use(broker):
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(runs_on_s)

    async def end(broker: Ending) -> None:
        await broker.end()
        ended.append((broker.bundle_id, round(trio.current_time() - began_s)))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for broker, runs_on_s in zip(brokers, (1, 2), strict=True):
                shown.show(cast(Broker, broker))
                nursery.start_soon(use, cast(Broker, broker), runs_on_s)
            await trio.testing.wait_all_tasks_blocked()
            began_s = trio.current_time()
            for broker in brokers:
                nursery.start_soon(end, broker)
    assert ended == [(0, 1), (1, 2)]
