"""How long nothing is heard of a peer."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from escapement.broker.session.silence_timeout import SilenceTimeout


async def test_a_peer_that_says_nothing_for_so_long_is_listened_to_no_more(
    autojump_clock: MockClock,
) -> None:
    silence = SilenceTimeout(10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(silence.watch)
        with silence.scope:
            for _ in range(5):  # each time it says something just before
                silence.begin()
                await trio.sleep(9)
                silence.end()
            await trio.sleep(25)  # which takes longer to be dealt with
            silence.begin()
            began_s = trio.current_time()
            await trio.sleep_forever()
        assert silence.scope.cancelled_caught
        assert trio.current_time() == pytest.approx(began_s + 10)


async def test_who_stops_listening_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    silence = SilenceTimeout(10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(silence.watch)
        await trio.sleep(1)
        silence.close()
    assert trio.current_time() < 10
    assert not silence.scope.cancelled_caught
