"""Asking for messages to be changed after they were published.

Asking twice does no harm, so a request whose answer was lost with the connection is sent
again on the next one: the caller is told what became of his messages, not that it is not
known, unless no broker answers in time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np

from escapement.client.asking import ask_again
from escapement.client.finding import find
from escapement.client.line import Line
from escapement.client.naming import What, name_messages
from escapement.client.outcome import Bools, Outcomes
from escapement.errors import InvalidRequest
from escapement.message import Int64s
from escapement.protocol import commands as wire
from escapement.protocol.commands import Command

# Ids in one request: a millisecond or so of the broker's time, and others go between.
REQUEST_IDS: Final = 32_768


async def cancel(
    line: Line, what: What | None, topic: str | None, dedup: str | Sequence[str] | None
) -> Outcomes:
    """See ``escapement.Broker.cancel``."""
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
    """See ``escapement.Broker.reschedule``."""
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
    """Ask for some at a time; what is at -1 is unknown without asking."""
    there = offsets[offsets >= 0]
    parts = []
    for low in range(0, len(there), REQUEST_IDS):
        part = there[low : low + REQUEST_IDS]
        answer = await ask_again(line, partial(_command, make, part))
        assert isinstance(answer, wire.Amended)
        parts.append(Outcomes(topic, part, answer.fates, _handed(answer)))
    return Outcomes.concat(topic, parts).among(offsets)


def _command(make: Callable[[int, Int64s], Command], part: Int64s, number: int) -> Command:
    return make(number, part)


def _handed(answer: wire.Amended) -> dict[str, Bools]:
    count = len(answer.fates)
    return {
        name: np.unpackbits(np.frombuffer(bits, np.uint8), count=count).astype(bool)
        for name, bits in answer.handed.items()
    }


async def locate(
    line: Line, what: What | None, topic: str | None, dedup: str | Sequence[str] | None
) -> tuple[str, Int64s]:
    """The full name of the topic, and the offsets in it; -1 for an unknown dedup key.

    Raises:
      InvalidRequest: unless messages of one topic are named, in one of the two ways.
    """
    if dedup is None:
        if what is None:
            raise InvalidRequest("name the messages, or their dedup keys with dedup=")
        return name_messages(what, topic)
    if what is not None or topic is None:
        raise InvalidRequest("dedup= goes with topic=, and with nothing else")
    return await find(line, topic, dedup)
