"""How much falls due when: a topic's future, counted by spans of time.

Counted from the delayed index's keys, so no payload is read and MySQL is not asked; in
steps, so that ten million pending messages, a second of work, hold up nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import trio

from escapement.broker.topic.topic import Topic
from escapement.errors import InvalidRequest
from escapement.message import Int64s
from escapement.storage.blocking import Run
from escapement.storage.index import DelayedIndex, Key

# Keys counted in one step: some milliseconds.
_STEP_KEYS: Final = 1 << 16
# A week by the minute, and then some.
MAX_SPANS: Final = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """``counts[i]`` messages fall due in the span of ``by_ms`` that begins i spans after the first.

    The first span has begun already, and the last may end after ``until_ms``: counted is what
    is due after ``from_ms`` and before ``until_ms``.
    """

    from_ms: int
    until_ms: int
    by_ms: int
    first_ms: int
    counts: Int64s


async def forecast(
    topic: Topic,
    index: DelayedIndex,
    run: Run,
    now_ms: int,
    *,
    by_ms: int,
    within_ms: int,
    origin_ms: int = 0,
) -> Forecast:
    """What falls due in the next ``within_ms``, by spans of ``by_ms``.

    Args:
      origin_ms: a time at which a span begins, such as some midnight.

    Raises:
      InvalidRequest: if there would be more than ``MAX_SPANS``.
    """
    until_ms = now_ms + within_ms
    first_ms = origin_ms + (now_ms + 1 - origin_ms) // by_ms * by_ms
    spans = -(-(until_ms - first_ms) // by_ms)
    if spans > MAX_SPANS:
        raise InvalidRequest(
            f"a forecast has at most {MAX_SPANS} spans of time, not {spans}: look less far ahead, "
            "or by longer ones"
        )
    counts = np.zeros(spans, np.int64)
    at, until = Key(now_ms + 1, 0), Key(until_ms, 0)
    while at < until:
        plan = index.plan(topic.id, at, until, _STEP_KEYS)
        due_ms, offsets = plan.read() if plan.in_memory else await run(plan.read)
        due_ms = due_ms[topic.claims.pending(due_ms, offsets, now_ms)]
        counts += np.bincount((due_ms - first_ms) // by_ms, minlength=spans)
        at = plan.stop
        await trio.lowlevel.checkpoint()
    return Forecast(now_ms, until_ms, by_ms, first_ms, counts)
