"""The real broker in a test's process, in memory, on a virtual clock.

An application's test needs no server and no sleep::

    async def test_reminder_goes_out_after_a_month(mock_clock):
        async with escapement.testing.start() as world:
            async with world.connect() as broker:
                reminders = await broker.producer("reminders")
                await reminders.send(b"renew", delay=timedelta(days=30))
                async with broker.consumer("reminders", "mail", position="earliest") as inbox:
                    await world.clock.advance(days=30)
                    (message,) = await escapement.testing.arrived(inbox)
                    assert message.value == b"renew"

It runs under trio, on a ``trio.testing.MockClock``: pytest-trio's ``mock_clock`` fixture
provides one, and :func:`run` does without pytest-trio. Time stands still until the test
moves it, and moving it by a month takes milliseconds.
"""

from escapement.testing.clock import START_MS, VirtualClock
from escapement.testing.world import World, arrived, run, start

__all__ = ["START_MS", "VirtualClock", "World", "arrived", "run", "start"]
