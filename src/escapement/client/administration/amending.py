"""Cancelling and rescheduling messages.

These requests are idempotent. If the connection is lost before the answer arrives, the
request is sent again on the next connection. So the outcome is unknown only if no broker
answers in time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np

from escapement.client.administration.finding import find
from escapement.client.administration.outcome import Bools, Outcomes
from escapement.client.connection.line import Line
from escapement.client.connection.retried_request import ask_again
from escapement.client.message_ids import What, name_messages
from escapement.errors import InvalidRequest
from escapement.message import Int64s
from escapement.protocol import commands as wire
from escapement.protocol.commands import Command

# Ids in one request. The broker handles that many in about a millisecond, and serves other
# clients between requests.
REQUEST_IDS: Final = 32_768


async def cancel(
    line: Line, what: What | None, topic: str | None, dedup: str | Sequence[str] | None
) -> Outcomes:
    """Cancel messages; see ``escapement.Broker.cancel``."""
    name, offsets = await locate(line, what, topic, dedup)
    return await _amend(line, name, offsets, lambda number, part: wire.Cancel(number, name, part))


async def reschedule(
    line: Line,
    what: What | None,
    topic: str | None,
    dedup: str | Sequence[str] | None,
    delay_ms: int,
    at_ms: int,
) -> Outcomes:
    """Reschedule messages; see ``escapement.Broker.reschedule``."""
    name, offsets = await locate(line, what, topic, dedup)
    return await _amend(
        line,
        name,
        offsets,
        lambda number, part: wire.Reschedule(number, name, part, delay_ms, at_ms),
    )


async def _amend(
    line: Line, topic: str, offsets: Int64s, make: Callable[[int, Int64s], Command]
) -> Outcomes:
    """Send the requests one after the other. Offsets of -1 are ``UNKNOWN`` without a request."""
    there = offsets[offsets >= 0]
    parts = []
    for low in range(0, len(there), REQUEST_IDS):
        part = there[low : low + REQUEST_IDS]
        answer = await ask_again(line, partial(_command, make, part))
        assert isinstance(answer, wire.Amended)
        parts.append(Outcomes(topic, part, answer.statuses, _handed(answer)))
    return Outcomes.concat(topic, parts).among(offsets)


def _command(make: Callable[[int, Int64s], Command], part: Int64s, number: int) -> Command:
    return make(number, part)


def _handed(answer: wire.Amended) -> dict[str, Bools]:
    count = len(answer.statuses)
    return {
        name: np.unpackbits(np.frombuffer(bits, np.uint8), count=count).astype(bool)
        for name, bits in answer.handed.items()
    }


async def locate(
    line: Line, what: What | None, topic: str | None, dedup: str | Sequence[str] | None
) -> tuple[str, Int64s]:
    """Return the full name of the topic and the offsets; -1 for an unknown dedup key.

    Raises:
      InvalidRequest: unless the arguments name messages of one topic, by ``what`` or ``dedup``.
    """
    if dedup is None:
        if what is None:
            raise InvalidRequest(
                "no messages were given: pass messages, or their dedup keys with dedup="
            )
        return name_messages(what, topic)
    if what is not None or topic is None:
        raise InvalidRequest("dedup= needs topic=, and cannot be combined with messages")
    return await find(line, topic, dedup)
