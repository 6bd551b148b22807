"""What tests hold calls with: it must not hang where there is nothing to hold."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from support.held_calls import Held

SOON_S = 0.02


class Caller:
    """Has a call to be held."""

    def call(self) -> int:
        return 7


async def _nobody_calls(held: Held) -> None:
    with held.hold("Caller.renamed"), pytest.raises(AssertionError, match=r"Caller\.renamed"):
        await held.reached()
    assert await held(Caller().call) == 7


async def test_a_call_that_nobody_makes_is_noticed() -> None:
    """It has been renamed, say: the test fails, and says what it waited for."""
    await _nobody_calls(Held(SOON_S))


@pytest.mark.parametrize("autojump_s", [0.0, float("inf")])
async def test_it_is_noticed_on_a_virtual_clock(mock_clock: MockClock, autojump_s: float) -> None:
    """One that stands still, and one that leaps whenever everybody waits."""
    mock_clock.autojump_threshold = autojump_s
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        await _nobody_calls(Held(SOON_S))
        nursery.cancel_scope.cancel()


async def test_a_leap_of_the_virtual_clock_is_no_patience_lost(
    autojump_clock: MockClock,
) -> None:
    """What is called after a month of it is held."""
    held = Held()

    async def call_in_a_month() -> None:
        await trio.sleep(30 * 86_400)
        assert await held(Caller().call) == 7

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call_in_a_month)
        with held.hold("Caller.call"):
            await held.reached()
