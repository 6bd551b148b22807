"""Requests to cancel or reschedule messages, and their outcomes.

These requests are idempotent. If the connection is lost before the answer arrives, the request is
sent again on the next connection. So the outcome is unknown only if no broker answers in time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from escapement.client.administration.finding import locate
from escapement.client.administration.outcome import Outcomes
from escapement.client.connection.lines import Lines
from escapement.client.connection.retried_request import ask_in_parts
from escapement.client.message_ids import What
from escapement.message import Bools, Int64s
from escapement.protocol import commands as wire
from escapement.protocol.commands import Command


async def amend(
    lines: Lines,
    what: What | None,
    topic: str | None,
    key: str | None,
    dedup: str | Sequence[str] | None,
    make: Callable[[int, str, Int64s], Command],
) -> Outcomes:
    """Cancel or reschedule messages, and return the outcome for each.

    Args:
      lines: the client's connections to the brokers.
      what, topic, key, dedup: name the messages, as for ``escapement.Broker.cancel``.
      make: creates the command for a request id, the full name of the topic, and offsets.
    """
    name, offsets = await locate(lines, what, topic, key, dedup)
    outcomes = []
    # An offset of -1 stands for an unknown dedup key. Its outcome is ``UNKNOWN`` in any case.
    for part, answer in await ask_in_parts(
        lines, name, offsets[offsets >= 0], lambda part, number: make(number, name, part)
    ):
        assert isinstance(answer, wire.Amended)
        outcomes.append(Outcomes(name, part, answer.statuses, _handed(answer)))
    return Outcomes.concat(name, outcomes)._among(offsets)


def _handed(answer: wire.Amended) -> dict[str, Bools]:
    count = len(answer.statuses)
    return {
        name: np.unpackbits(np.frombuffer(bits, np.uint8), count=count).astype(bool)
        for name, bits in answer.handed.items()
    }
