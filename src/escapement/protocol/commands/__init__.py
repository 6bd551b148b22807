"""The commands of the wire, one frozen dataclass each: the dataclass is the frame.

A frame is one msgpack array ``[type, field, ...]``. A command's fields stand in the
order of the dataclass, each with a kind (see ``fields``) that checks type, range and
length when it comes from the wire and again when it is sent; ``check`` looks at what
several fields say together. What a command *means*, and whether its names exist, is
not known here.

Numbers: ids are chosen by the client, live as long as the connection, and start at 1; a
request id of 0 means that no reply is wanted. ``sequence`` numbers a producer's
messages and names the first of a batch. Times are Unix milliseconds.
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
    Flow,
    Halt,
    Nack,
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
from escapement.protocol.commands.refusal import Refused, carried

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
    "Find",
    "Flow",
    "Found",
    "Goodbye",
    "Halt",
    "Hello",
    "Nack",
    "OpenProducer",
    "Page",
    "Ping",
    "Pong",
    "ProducerClosed",
    "ProducerReady",
    "Publish",
    "Read",
    "Receipt",
    "Refused",
    "Release",
    "Reschedule",
    "Role",
    "Subscribe",
    "Welcome",
    "carried",
]
