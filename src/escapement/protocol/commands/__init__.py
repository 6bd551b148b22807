"""The commands of the protocol: the messages that client and broker exchange.

Begin with ``command.py``, the base class of commands and the table of all commands.

Each command is a frozen dataclass. Its frame is one msgpack array ``[type, field, ...]``, with the
fields in the order of the dataclass. Each field has a kind (see ``fields``), which checks type,
range and length when the command is received and when it is sent. The method ``check`` checks that
the fields fit each other. These modules do not execute commands or check whether names exist.

``request_id`` is the id of a request, and its reply has the same id. ``producer_id`` and
``consumer_id`` name a producer and a consumer. The client chooses these ids. They start at 1 and
are valid as long as the connection. A ``request_id`` of 0 requests no reply. The messages of a
producer are numbered, and ``sequence`` is the number of the first message of a batch. Times are
Unix milliseconds.
"""

from escapement.protocol.commands.admin import Admin, AdminReply
from escapement.protocol.commands.amending import Amended, Cancel, Reschedule
from escapement.protocol.commands.command import COMMANDS, Command, Role
from escapement.protocol.commands.connection import Done, Goodbye, Hello, Ping, Pong, Welcome
from escapement.protocol.commands.consuming import (
    Ack,
    Acked,
    CloseConsumer,
    ConsumerActive,
    ConsumerClosed,
    ConsumerReady,
    ConsumerRewound,
    Deliver,
    Extend,
    Fields,
    Flow,
    Halt,
    Nack,
    Reject,
    Release,
    Subscribe,
)
from escapement.protocol.commands.producing import (
    CloseProducer,
    OpenProducer,
    ProducerClosed,
    ProducerReady,
    Publish,
    Receipt,
)
from escapement.protocol.commands.reading import Find, Found, Page, Read
from escapement.protocol.commands.refusal import Refused, error_fields
from escapement.protocol.commands.routing import Lookup, Moved, Owner

__all__ = [
    "COMMANDS",
    "Ack",
    "Acked",
    "Admin",
    "AdminReply",
    "Amended",
    "Cancel",
    "CloseConsumer",
    "CloseProducer",
    "Command",
    "ConsumerActive",
    "ConsumerClosed",
    "ConsumerReady",
    "ConsumerRewound",
    "Deliver",
    "Done",
    "Extend",
    "Fields",
    "Find",
    "Flow",
    "Found",
    "Goodbye",
    "Halt",
    "Hello",
    "Lookup",
    "Moved",
    "Nack",
    "OpenProducer",
    "Owner",
    "Page",
    "Ping",
    "Pong",
    "ProducerClosed",
    "ProducerReady",
    "Publish",
    "Read",
    "Receipt",
    "Refused",
    "Reject",
    "Release",
    "Reschedule",
    "Role",
    "Subscribe",
    "Welcome",
    "error_fields",
]
