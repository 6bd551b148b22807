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
loop in its own thread: each call runs a method of the async client in that loop, and waits for its
result. All objects may be used from any number of threads. A call costs about 50 µs. If that is too
much, use ``send_many``, ``submit`` and ``batches``. Acknowledging by ``with message`` does not
wait.

Begin with ``broker.py``. ``loop.py`` runs the event loop.
"""

from escapement.sync.broker import Broker
from escapement.sync.connecting import connect
from escapement.sync.groups import Groups
from escapement.sync.inbox import Batch, Inbox, Message
from escapement.sync.producer import Producer
from escapement.sync.schedules import Schedules

__all__ = ["Batch", "Broker", "Groups", "Inbox", "Message", "Producer", "Schedules", "connect"]
