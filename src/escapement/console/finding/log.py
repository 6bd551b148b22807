"""The search for messages that are over: acknowledged, cancelled or lapsed. It reads the log.

No index has these messages, so the search goes back through the log, from the message that was
published last. For one page it reads a bounded number of messages. If their key and properties
match, it looks at them one by one, up to another bound.
"""

from __future__ import annotations

from typing import Final

from escapement.broker.inspection.search import Sought
from escapement.client.broker import Broker
from escapement.console.finding.filter import Filter, State
from escapement.console.finding.page import PAGE_MESSAGES, Found, Row
from escapement.console.finding.pending import MOST_LOOKED, histories, row_of
from escapement.errors import InvalidRequest

# The most messages that are read for one page, and in one step.
_MOST_READ: Final = 4_000
_STEP: Final = 200
# The most digits of an offset.
_MOST_DIGITS: Final = 18
# The states of messages as a whole, by the broker's names.
_WHOLE: Final[dict[str, State]] = {
    "acked": "acknowledged",
    "cancelled": "cancelled",
    "lapsed": "lapsed",
}


async def over(broker: Broker, topic: str, asked: Filter, after: str) -> Found:
    """Return a page of messages of a topic that are over, the latest published first.

    Args:
      after: the offset before which the page begins; "" for the first page.
    """
    if after:
        if not (after.isascii() and after.isdigit() and len(after) <= _MOST_DIGITS):
            raise InvalidRequest(f"{after!r:.60} is not an offset.")
        stop = int(after)
    elif asked.published_ms is not None:
        stop = await published_from(broker, topic, asked.published_ms)
    else:
        stop = (await broker.admin("topics.stats", topic=topic))["next_offset"]
    rows: list[Row] = []
    read = looked = 0
    while stop and read < _MOST_READ and looked < MOST_LOOKED and len(rows) < PAGE_MESSAGES:
        offsets, count = await _matching(broker, topic, asked, max(stop - _STEP, 0), stop)
        if not count and not await _has_earlier(broker, topic, stop):
            stop = 0
            break
        offsets = offsets[: MOST_LOOKED - looked]
        looked += len(offsets)
        rows += await _in_state(broker, topic, asked, offsets)
        is_cut = looked == MOST_LOOKED
        low = offsets[-1] if is_cut else max(stop - _STEP, 0)
        read += stop - low
        stop = low
    if len(rows) > PAGE_MESSAGES:
        stop = rows[PAGE_MESSAGES - 1].offset
    return Found(rows[:PAGE_MESSAGES], str(stop) if stop else "", read)


async def published_from(broker: Broker, topic: str, at_ms: int) -> int:
    """Return the first offset of the messages that were published at a time or later."""
    low, high = 0, (await broker.admin("topics.stats", topic=topic))["next_offset"]
    while low < high:
        middle = (low + high) // 2
        async for page in broker.read(topic, middle, high, page_messages=1):
            found, published_ms = int(page.offsets[0]), int(page.published_ms[0])
            break
        else:  # the log has nothing from here on
            high = middle
            continue
        if published_ms < at_ms:
            low = found + 1
        else:
            high = middle
    return low


async def _matching(
    broker: Broker, topic: str, asked: Filter, start: int, stop: int
) -> tuple[list[int], int]:
    """Return the offsets in a range with the key and properties, the last first.

    Return also the number of messages in the range.
    """
    keys = frozenset((asked.key.encode(),)) if asked.key else None
    sought = Sought(keys=keys, properties=asked.properties())
    offsets: list[int] = []
    count = 0
    async for page in broker.read(topic, start, stop):
        count += len(page)
        offsets += page.offsets[sought.matching(page.messages)].tolist()
    return offsets[::-1], count


async def _has_earlier(broker: Broker, topic: str, stop: int) -> bool:
    """Return whether the log has a message before an offset. It deletes its oldest part."""
    async for _ in broker.read(topic, 0, stop, page_messages=1):
        return True
    return False


async def _in_state(broker: Broker, topic: str, asked: Filter, offsets: list[int]) -> list[Row]:
    """Return those of some messages that have the state and the due time that are asked for."""
    start_ms, stop_ms = asked.from_ms or 0, asked.until_ms
    shown = await histories(broker, topic, offsets)
    rows = []
    for offset in offsets:
        answer = shown.get(offset)
        if answer is None or _WHOLE.get(answer["state"]) != asked.state:
            continue
        due_ms = answer["due_at_ms"]
        if start_ms <= due_ms and (stop_ms is None or due_ms < stop_ms):
            rows.append(row_of(answer, asked.state))
    return rows
