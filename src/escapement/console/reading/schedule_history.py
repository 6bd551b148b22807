"""The messages that a schedule has published, found in its topic's log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from escapement.client.administration.reading import Page
from escapement.client.broker import Broker
from escapement.console.finding.log import published_from
from escapement.errors import AccessDenied, NotFound

# The most occurrences that are shown.
_MOST: Final = 20
# The most messages of the topic that are searched, the messages of one request, and the most bytes
# of payloads. The broker has no list of the messages of a schedule.
_SEARCHED: Final = 2_000
_STEP: Final = 250
_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Published:
    """A message of a schedule."""

    id: str
    occurrence_ms: int
    published_ms: int
    due_ms: int
    run_now: bool


@dataclass(frozen=True, slots=True)
class History:
    """Messages of a schedule, the latest first.

    Attributes:
      searched: how many messages of the topic were searched.
      whole: whether these are all messages of the topic.
      since_ms, until_ms: when the first and the last of them were published.
      problem: why the topic could not be searched; "" if it could.
    """

    messages: list[Published]
    searched: int = 0
    whole: bool = False
    since_ms: int | None = None
    until_ms: int | None = None
    problem: str = ""


async def history(broker: Broker, schedule: dict[str, Any]) -> History:
    """Return the latest messages of a schedule.

    They are searched in the end of the topic's log. If the topic has many later messages, they are
    searched where the last occurrence was published.
    """
    name, topic, last_ms = schedule["schedule"], schedule["topic"], schedule["last_at_ms"]
    try:
        end = (await broker.admin("topics.stats", topic=topic))["next_offset"]
        found = await _before(broker, name, topic, end)
        is_earlier = last_ms is not None and last_ms < (found.since_ms or 0)
        if is_earlier and not found.messages and not found.whole:
            stop = await published_from(broker, topic, last_ms) + _STEP
            found = replace(await _before(broker, name, topic, min(stop, end)), whole=False)
    except NotFound:
        return History([], whole=True)
    except AccessDenied as error:
        return History([], problem=str(error))
    return found


async def _before(broker: Broker, name: str, topic: str, end: int) -> History:
    """Search the messages before an offset, the last first."""
    messages: list[Published] = []
    searched = read_bytes = 0
    since_ms = until_ms = None
    begin = end
    while begin > 0 and end - begin < _SEARCHED and read_bytes < _BYTES and len(messages) < _MOST:
        stop, begin = begin, max(begin - _STEP, 0)
        found: list[Published] = []
        async for page in broker.read(topic, begin, stop, page_messages=_STEP):
            searched += len(page)
            read_bytes += len(page.payloads.data)
            first_ms, last_ms = page.published_ms.item(0), page.published_ms.item(-1)
            since_ms = first_ms if since_ms is None else min(since_ms, first_ms)
            until_ms = last_ms if until_ms is None else max(until_ms, last_ms)
            found += _of(name, page)
        messages += reversed(found)
    return History(messages[:_MOST], searched, begin == 0, since_ms, until_ms)


def _of(name: str, page: Page) -> Iterator[Published]:
    """Yield the messages of a schedule among others."""
    for one in page:
        properties = one.properties
        occurrence_ms = properties.get("occurrence_ms")
        if properties.get("schedule") == name and isinstance(occurrence_ms, int):
            run_now = bool(properties.get("run_now"))
            yield Published(str(one.id), occurrence_ms, one.published_ms, one.due_ms, run_now)
