"""The timeout for peers that send nothing."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from escapement.broker.session.silence_timeout import SilenceTimeout


async def test_silent_peer_is_cut_off_after_the_timeout(
    autojump_clock: MockClock,
) -> None:
    silence = SilenceTimeout(10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(silence.watch)
        with silence.scope:
            for _ in range(5):  # each time the peer sends something before the timeout
                silence.begin()
                await trio.sleep(9)
                silence.end()
            await trio.sleep(25)  # handling its data takes longer than the timeout
            silence.begin()
            began_s = trio.current_time()
            await trio.sleep_forever()
        assert silence.scope.cancelled_caught
        assert trio.current_time() == pytest.approx(began_s + 10)


async def test_closed_timeout_ends_its_task(autojump_clock: MockClock) -> None:
    silence = SilenceTimeout(10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(silence.watch)
        await trio.sleep(1)
        silence.close()
    assert trio.current_time() < 10
    assert not silence.scope.cancelled_caught
