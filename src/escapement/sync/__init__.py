"""The blocking client: the same names and guarantees as the async client, without ``await``.

::

    with escapement.sync.connect("escapement://localhost") as broker:
        orders = broker.producer("shop/eu/orders")
        orders.send(b"pay me", delay=timedelta(minutes=3))
        with broker.consumer("shop/eu/orders", "billing") as inbox:
            for message in inbox:
                with message:
                    handle(message.value)

The classes here are *facades* of the async client (``escapement.client``), which runs in an event
loop in its own thread: most calls run a method of the async client in that loop, and wait for its
result. All objects may be used from any number of threads. Such a call costs about 50 µs. The
methods for single messages do not wait for the loop: ``submit``, iterating over a consumer, and
acknowledging by ``with message``.

Begin with ``broker.py``. ``loop.py`` runs the event loop.
"""

from escapement.sync.broker import Broker
from escapement.sync.bulk import Bulk
from escapement.sync.connecting import connect
from escapement.sync.groups import Groups
from escapement.sync.inbox import Batch, Inbox, Message
from escapement.sync.producer import Producer
from escapement.sync.schedules import Schedules

__all__ = [
    "Batch",
    "Broker",
    "Bulk",
    "Groups",
    "Inbox",
    "Message",
    "Producer",
    "Schedules",
    "connect",
]


def __dir__() -> list[str]:
    """Return the public names, without the modules of this package."""
    return sorted(__all__)
