"""The client for code that blocks: the same names, the same promises, no ``await``.

::

    with escapement.sync.connect("escapement://localhost") as broker:
        orders = broker.producer("shop/eu/orders")
        orders.send(b"pay me", delay=timedelta(minutes=3))
        with broker.consumer("shop/eu/orders", "billing") as inbox:
            for message in inbox:
                with message:
                    handle(message.value)

It is a face, not a second client: an event loop runs in a thread of its own, the client
runs there, and every call here hands over and waits. Everything may be used from any
number of threads. A hand-over costs some 50 µs; where that counts, use ``send_many``,
``submit`` and ``batches``. Acknowledging by ``with message`` hands over without waiting.
"""

from escapement.sync.broker import Broker
from escapement.sync.connecting import connect
from escapement.sync.groups import Groups
from escapement.sync.inbox import Batch, Inbox, Message
from escapement.sync.producer import Producer
from escapement.sync.schedules import Schedules

__all__ = ["Batch", "Broker", "Groups", "Inbox", "Message", "Producer", "Schedules", "connect"]
