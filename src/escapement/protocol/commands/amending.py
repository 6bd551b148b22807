"""Commands of changing one's mind: about messages that are published and not handed out."""

from __future__ import annotations

from dataclasses import dataclass

from escapement.protocol.commands.command import Command, command
from escapement.protocol.fields import AckColumn, CountOrNone, FateColumn, Id, PlainMap, Topic
from escapement.protocol.limits import MAX_FRAME_BYTES


@command(50, "client")
@dataclass(frozen=True, slots=True, eq=False)
class Cancel(Command):
    """Messages are to go to no subscription that has not been handed them.

    Answered by Amended once that is durable.
    """

    request_id: Id
    topic: Topic
    offsets: AckColumn

    MAX_BYTES = MAX_FRAME_BYTES


@command(51, "client")
@dataclass(frozen=True, slots=True, eq=False)
class Reschedule(Command):
    """Messages are due after ``delay_ms``, or at ``at_ms``; at -1 for both, now.

    Answered by Amended once that is durable.
    """

    request_id: Id
    topic: Topic
    offsets: AckColumn
    delay_ms: CountOrNone
    at_ms: CountOrNone

    MAX_BYTES = MAX_FRAME_BYTES

    def check(self) -> None:
        if self.delay_ms >= 0 and self.at_ms >= 0:
            raise ValueError("there is a delay and a time")


@command(52, "broker")
@dataclass(frozen=True, slots=True, eq=False)
class Amended(Command):
    """What became of the messages of a Cancel or Reschedule, in the order of their naming.

    A fate is 0 (there is no such message), 1 (done), 2 (every subscription that was to get it
    had been handed it), 3 (it is cancelled, and was not rescheduled) or 4 (no subscription is
    to get it any more, and not all are known to have been handed it). ``handed`` has for each
    subscription that had been handed any of them which these were: a bit for each message,
    the first in the highest bit of the first byte.
    """

    request_id: Id
    fates: FateColumn
    handed: PlainMap

    MAX_BYTES = MAX_FRAME_BYTES
    MAX_CONTAINERS = 2  # the frame and the map

    def check(self) -> None:
        size = -(-len(self.fates) // 8)
        if not all(type(bits) is bytes and len(bits) == size for bits in self.handed.values()):
            raise ValueError("handed holds what is not a bit for each message")
