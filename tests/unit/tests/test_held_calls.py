"""Held calls: a test that holds a call does not hang if the call is never made."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from support.faults.held_calls import Held

SOON_S = 0.02


class Caller:
    """An object with a method to hold."""

    def call(self) -> int:
        return 7


async def _call_is_never_made(held: Held) -> None:
    with held.hold("Caller.renamed"), pytest.raises(AssertionError, match=r"Caller\.renamed"):
        await held.reached()
    assert await held(Caller().call) == 7


async def test_held_call_that_is_never_made_fails_the_test() -> None:
    """The error names the call, which may have been renamed."""
    await _call_is_never_made(Held(SOON_S))


@pytest.mark.parametrize("autojump_s", [0.0, float("inf")])
async def test_held_call_that_is_never_made_fails_the_test_on_a_virtual_clock(
    mock_clock: MockClock, autojump_s: float
) -> None:
    """The clock stands still, or jumps whenever all tasks wait."""
    mock_clock.autojump_threshold = autojump_s
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        await _call_is_never_made(Held(SOON_S))
        nursery.cancel_scope.cancel()


async def test_jump_of_the_virtual_clock_does_not_count_as_waiting(
    autojump_clock: MockClock,
) -> None:
    """A call is held after a month of virtual time."""
    held = Held()

    async def call_in_a_month() -> None:
        await trio.sleep(30 * 86_400)
        assert await held(Caller().call) == 7

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call_in_a_month)
        with held.hold("Caller.call"):
            await held.reached()
