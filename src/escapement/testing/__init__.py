"""A broker for tests of applications: the real one, in the test process, with virtual time.

Tests of an application need no server and no sleep::

    async def test_reminder_goes_out_after_a_month(mock_clock):
        async with escapement.testing.start() as world:
            async with world.connect() as broker:
                reminders = await broker.producer("reminders")
                await reminders.send(b"renew", delay=timedelta(days=30))
                async with broker.consumer("reminders", "mail", position="earliest") as inbox:
                    await world.clock.advance(days=30)
                    (message,) = await escapement.testing.arrived(inbox)
                    assert message.value == b"renew"

The broker keeps its messages in memory. It runs under trio with a ``trio.testing.MockClock``, which
the fixture ``mock_clock`` of pytest-trio provides. Without pytest-trio, use :func:`run`. Time
stands still until the test advances it. Advancing it by a month takes milliseconds.

Begin with ``world.py``, the broker. ``clock.py`` has the virtual clock.
"""

from escapement.testing.clock import START_MS, VirtualClock
from escapement.testing.world import World, arrived, run, start

__all__ = ["START_MS", "VirtualClock", "World", "arrived", "run", "start"]
