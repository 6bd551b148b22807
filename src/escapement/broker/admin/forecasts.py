"""The verbs that count the messages that fall due: of a topic, and of a namespace or everything.

The forecast of a topic counts its keys now. The forecast of a namespace comes from the last census,
because it may be about ten million messages in ten thousand topics.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypedDict

import numpy as np

from escapement.broker.admin.arguments import Arguments
from escapement.broker.admin.verb import Verb, topic_of
from escapement.broker.broker import Broker
from escapement.broker.upkeep.census import Census, Pending
from escapement.errors import Busy
from escapement.names import NamespaceName
from escapement.spans import Spans

_HOUR_MS: Final = 3_600_000
# A forecast waits for a new census if the last one took at most this long, so that the numbers of a
# small broker are new. Otherwise it answers from the last one, unless that is old.
_SHORT_MS: Final = 100
# How long a forecast waits for a new census after a short one, and if there is none or an old one.
_WAIT_S: Final = 0.1
_LONG_WAIT_S: Final = 5.0


class Forecast(TypedDict):
    """How many messages fall due in each span of ``by_ms``, from ``first_ms`` on."""

    topic: str
    from_ms: int
    until_ms: int
    by_ms: int
    first_ms: int
    total: int
    counts: list[int]


class NamespaceForecast(TypedDict):
    """How many messages of a namespace fall due in each span, and how many are overdue.

    ``namespace`` is null for all namespaces together. ``at_ms`` is the time of the count.
    """

    namespace: str | None
    at_ms: int
    exact: bool
    until_ms: int
    by_ms: int
    first_ms: int
    total: int
    counts: list[int]
    scheduled: int
    overdue: int
    due: int
    retrying: int
    in_flight: int
    oldest_due_ms: int | None


class _Wanted(NamedTuple):
    """The spans that a forecast is asked for."""

    by_ms: int
    within_ms: int
    origin_ms: int


async def _forecast_topic(broker: Broker, given: Arguments) -> Forecast:
    topic = topic_of(broker, given)
    wanted = _take_wanted(given)
    given.end()
    found = await broker.forecast(topic, **wanted._asdict())
    return {
        "topic": topic.name.full,
        "from_ms": found.spans.from_ms,
        "until_ms": found.spans.until_ms,
        "by_ms": found.spans.by_ms,
        "first_ms": found.spans.first_ms,
        "total": int(found.counts.sum()),
        "counts": found.counts.tolist(),
    }


async def _forecast_namespace(broker: Broker, given: Arguments) -> NamespaceForecast:
    text = given.optional_text("namespace")
    wanted = _take_wanted(given)
    given.end()
    namespace = None if text is None else NamespaceName.parse(text)
    found = None if namespace is None else broker.registry.namespaces.find(namespace)
    seen = given.caller.coverage("peek")
    census = await _census(broker)
    spans = Spans.after(census.began_ms, **wanted._asdict())
    if found is not None:
        parts = [census.namespaces.get(found.id, Pending())]
    elif "*" in seen:
        parts = [census]
    else:
        # A count must not tell a role about topics that it does not see.
        parts = [
            census.namespaces.get(one.id, Pending())
            for one in broker.registry.namespaces
            if f"{one.tenant}/{one.name}/*" in seen
        ]
    pending, counts, is_exact = Pending(), np.zeros(spans.count, np.int64), True
    for part in parts:
        pending.add(part)
        part_counts, part_is_exact = part.spans.by(spans)
        counts += part_counts
        is_exact = is_exact and part_is_exact
    return {
        "namespace": None if namespace is None else namespace.full,
        "at_ms": census.began_ms,
        "exact": is_exact and pending.exact,
        "until_ms": spans.begins_ms(spans.count),
        "by_ms": spans.by_ms,
        "first_ms": spans.first_ms,
        "total": int(counts.sum()),
        "counts": counts.tolist(),
        "scheduled": pending.scheduled,
        "overdue": pending.due + pending.retrying,
        "due": pending.due,
        "retrying": pending.retrying,
        "in_flight": pending.in_flight,
        "oldest_due_ms": pending.oldest_due_ms,
    }


async def _census(broker: Broker) -> Census:
    taker = broker.services.census
    wait_s = _LONG_WAIT_S
    if taker.last is not None and not taker.is_old:
        wait_s = _WAIT_S if taker.last.at_ms - taker.last.began_ms <= _SHORT_MS else 0
    found = await taker.fresh(wait_s)
    if found is None or taker.is_old:
        raise Busy(
            "The broker counts its pending messages now, and has no recent count. Try again."
        )
    return found


def _take_wanted(given: Arguments) -> _Wanted:
    return _Wanted(
        given.optional_number("by_ms") or _HOUR_MS,
        given.optional_number("within_ms") or 24 * _HOUR_MS,
        given.optional_number("origin_ms") or 0,
    )


VERBS: Final[dict[str, Verb]] = {
    "topics.forecast": _forecast_topic,
    "namespaces.forecast": _forecast_namespace,
}
