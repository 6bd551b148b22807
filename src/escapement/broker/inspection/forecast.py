"""The forecast of a topic: the number of messages that fall due in each span of time.

A forecast counts keys of the delayed index. It reads no payload and does not query MySQL. Counting
ten million pending messages takes about a second; it works in steps, so that it delays no other
task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import trio

from escapement.broker.topic.topic import Topic
from escapement.message import Int64s
from escapement.spans import Spans
from escapement.storage.blocking import Run
from escapement.storage.index import DelayedIndex, Key

# Keys counted in one step, which takes some milliseconds.
_STEP_KEYS: Final = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """The number of messages that fall due in each span of time.

    ``counts[i]`` is the number for span i of ``spans``. Messages due after ``spans.from_ms`` and
    before ``spans.until_ms`` are counted.
    """

    spans: Spans
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
    """Count the messages that fall due in the next ``within_ms``, by spans of ``by_ms``.

    Args:
      now_ms: messages due later than this are counted.
      origin_ms: a time at which a span begins, such as a midnight.

    Raises:
      InvalidRequest: if there would be more spans than ``MAX_SPANS``.
    """
    spans = Spans.after(now_ms, by_ms=by_ms, within_ms=within_ms, origin_ms=origin_ms)
    counts = np.zeros(spans.count, np.int64)
    at, until = Key(now_ms + 1, 0), Key(spans.until_ms, 0)
    while at < until:
        plan = index.plan(topic.id, at, until, _STEP_KEYS)
        due_ms, offsets = await run(plan.read)
        due_ms = due_ms[topic.retention.pending(due_ms, offsets, now_ms)]
        counts += np.bincount((due_ms - spans.first_ms) // by_ms, minlength=spans.count)
        at = plan.stop
        await trio.lowlevel.checkpoint()
    return Forecast(spans, counts)
