"""The messages that a schedule has published, found in the end of its topic's log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from escapement.client.broker import Broker
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
    """The latest messages of a schedule, the latest first.

    Attributes:
      searched: how many messages of the topic were searched, from its end.
      whole: whether these are all messages of the topic.
      since_ms: when the earliest of them was published.
      problem: why the topic could not be searched; "" if it could.
    """

    messages: list[Published]
    searched: int = 0
    whole: bool = False
    since_ms: int | None = None
    problem: str = ""


async def history(broker: Broker, schedule: dict[str, Any]) -> History:
    """Return the latest messages of a schedule that are near the end of its topic."""
    name, topic = schedule["schedule"], schedule["topic"]
    try:
        return await _history(broker, name, topic)
    except NotFound:
        return History([], whole=True)
    except AccessDenied as error:
        return History([], problem=str(error))


async def _history(broker: Broker, name: str, topic: str) -> History:
    end = (await broker.admin("topics.stats", topic=topic))["next_offset"]
    messages: list[Published] = []
    searched = read_bytes = 0
    since_ms = None
    begin = end
    while begin > 0 and end - begin < _SEARCHED and read_bytes < _BYTES and len(messages) < _MOST:
        stop, begin = begin, max(begin - _STEP, 0)
        found: list[Published] = []
        async for page in broker.read(topic, begin, stop, page_messages=_STEP):
            searched += len(page)
            read_bytes += len(page.payloads.data)
            since_ms = min(since_ms or page.published_ms.item(0), page.published_ms.item(0))
            for one in page:
                properties = one.properties
                occurrence_ms = properties.get("occurrence_ms")
                if properties.get("schedule") == name and isinstance(occurrence_ms, int):
                    run_now = bool(properties.get("run_now"))
                    found.append(
                        Published(str(one.id), occurrence_ms, one.published_ms, one.due_ms, run_now)
                    )
        messages += reversed(found)
    return History(messages[:_MOST], searched, begin == 0, since_ms)
