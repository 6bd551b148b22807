"""The verb ``subscriptions.overview``: a page of the subscriptions of many topics.

A page begins after a pair of a topic and a subscription, and has the next ones by name. To find
them, a request looks at the names of all topics, in steps, and keeps only as many as the page has.
No topic becomes active.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypedDict

import trio

from escapement.access.coverage import Coverage
from escapement.broker.admin.arguments import Arguments
from escapement.broker.admin.figures import SubscriptionRow, row
from escapement.broker.admin.verb import Verb, beginning_of
from escapement.broker.broker import Broker
from escapement.broker.registry.registry import Registry
from escapement.errors import InvalidRequest

_USUAL_ROWS: Final = 100
_MOST_ROWS: Final = 1_000
# Names of topics that are looked at, subscriptions of these, and rows that are made, in one step of
# the event loop. A topic with more subscriptions is looked at in one step.
_STEP_NAMES: Final = 1_000
_STEP_SUBSCRIPTIONS: Final = 5_000
_STEP_ROWS: Final = 50

# A topic and a subscription.
Place = tuple[str, str]


class SubscriptionPage(TypedDict):
    """Some subscriptions by name, at most ``count``, and where the next page begins."""

    subscriptions: list[SubscriptionRow]
    next: list[str] | None
    count: int


class _Wanted(NamedTuple):
    """Which subscriptions a request is about."""

    prefix: str  # of the full names of topics
    seen: Coverage  # topics that the caller may see
    search: str  # a part of the name of the topic or the subscription
    after: Place

    def among(
        self, registry: Registry, names: Iterable[str], until: Place | None
    ) -> Iterator[Place]:
        """Yield the wanted subscriptions of some topics, up to ``until``, in no order."""
        first, last = self.after[0], None if until is None else until[0]
        fits = [
            name
            for name in names
            if first <= name and (last is None or name <= last) and name.startswith(self.prefix)
        ]
        for name in self.seen.among(fits):
            record = registry.topics.get(name)
            if record is not None:  # not deleted meanwhile
                in_topic = self.search in name
                for one in registry.subscriptions_of(record.id):
                    place = name, one.name
                    if place > self.after and (in_topic or self.search in one.name):
                        yield place


async def _overview(broker: Broker, given: Arguments) -> SubscriptionPage:
    within = given.optional_text("namespace")
    search = given.optional_text("search") or ""
    after = given.optional_texts("after", 2) or ["", ""]
    count = given.optional_number("count") or _USUAL_ROWS
    given.end()
    if len(after) != 2:
        raise InvalidRequest("subscriptions.overview needs 'after' as the list 'next' of an answer")
    if count > _MOST_ROWS:
        raise InvalidRequest(
            f"subscriptions.overview answers at most {_MOST_ROWS} subscriptions: lower 'count'."
        )
    seen = given.caller.coverage("peek")
    prefix = beginning_of(broker, within, seen)
    wanted = _Wanted(prefix, seen, search, (after[0], after[1]))
    places = await _next_places(broker.registry, wanted, count + 1)
    page = places[:count]
    async with broker.answering:
        found: list[SubscriptionRow] = []
        for at in range(0, len(page), _STEP_ROWS):
            await trio.lowlevel.checkpoint()
            found += _rows(broker, page[at : at + _STEP_ROWS])
        return {
            "subscriptions": found,
            "next": list(page[-1]) if len(places) > count else None,
            "count": count,
        }


async def _next_places(registry: Registry, wanted: _Wanted, most: int) -> list[Place]:
    """Return the first ``most`` subscriptions by name."""
    found: list[Place] = []
    for names in _steps(registry):
        await trio.lowlevel.checkpoint()
        until = found[-1] if len(found) == most else None
        more = list(wanted.among(registry, names, until))
        if more:
            found = sorted(found + more)[:most]
    return found


def _steps(registry: Registry) -> Iterator[list[str]]:
    """Yield the names of all topics that exist now, in parts for one step."""
    names: list[str] = []
    subscriptions = 0
    for name, record in list(registry.topics.items()):
        names.append(name)
        subscriptions += len(registry.subscriptions_of(record.id))
        if len(names) == _STEP_NAMES or subscriptions >= _STEP_SUBSCRIPTIONS:
            yield names
            names, subscriptions = [], 0
    yield names


def _rows(broker: Broker, places: Iterable[Place]) -> Iterator[SubscriptionRow]:
    registry = broker.registry
    for topic, name in places:
        record = registry.topics.get(topic)
        of_topic = () if record is None else registry.subscriptions_of(record.id)
        one = next((one for one in of_topic if one.name == name), None)
        if record is not None and one is not None:  # not deleted meanwhile
            yield row(broker, topic, record, one)


VERBS: Final[dict[str, Verb]] = {"subscriptions.overview": _overview}
