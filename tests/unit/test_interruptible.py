"""Signals cancel async work as a whole, wherever they arrive."""

from __future__ import annotations

import signal

import pytest
import trio

from escapement.interruptible import until_interrupted


async def test_signal_that_arrives_in_a_finalizer_cancels_the_work() -> None:
    """Python ignores a KeyboardInterrupt there."""

    class Interrupting:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    async def work() -> None:
        Interrupting()
        await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        await until_interrupted(work, signal.SIGINT, signal.SIGTERM)


async def test_result_of_work_without_a_signal_is_returned() -> None:
    async def work() -> int:
        await trio.lowlevel.checkpoint()
        return 7

    assert await until_interrupted(work) == 7
