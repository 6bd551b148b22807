"""Verbs that concern the brokers of several bundles, and how their answers become one. Pure.

A *verb* is the name of an administrative request, such as ``topics.list``. A *bundle* is a set of
topics with one broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

# The most rows of a listing, as for one broker.
MOST_ROWS: Final = 10_000

# Verbs about a schedule by its name. The schedule belongs to the bundle of its topic, which the
# caller does not know. So each broker is asked in turn until one knows the schedule.
SOUGHT: Final = {
    "schedules.get", "schedules.update", "schedules.run_now", "schedules.next",
    "schedules.pause", "schedules.resume", "schedules.delete",
}  # fmt: skip

# Figures of brokers of which the highest counts. With the latest start, a client sees that the
# counters of one of the brokers began again.
_HIGHEST: Final = frozenset({
    "started_at_ms", "commit_p50_us", "commit_p99_us", "log_rows", "log_disk_bytes",
    "log_generation", "table_parallelism",
})  # fmt: skip

Merge = Callable[[list[Any]], Any]


def _topics(answers: list[Any]) -> Any:
    names = sorted(name for answer in answers for name in answer["topics"])
    return {"topics": names[:MOST_ROWS], "total": sum(answer["total"] for answer in answers)}


def _page_of_subscriptions(answers: list[Any]) -> Any:
    """Merge pages that begin at the same place: the next rows by name, of all bundles."""
    count = answers[0]["count"]
    ends = [answer["next"] for answer in answers if answer["next"] is not None]
    rows = sorted(
        (row for answer in answers for row in answer["subscriptions"]),
        key=lambda row: (row["topic"], row["subscription"]),
    )
    # A bundle may have further rows after the end of its page.
    known = [row for row in rows if not ends or [row["topic"], row["subscription"]] <= min(ends)]
    page = known[:count]
    following = min(ends, default=None)
    if len(known) > count:
        following = [page[-1]["topic"], page[-1]["subscription"]]
    return {"subscriptions": page, "next": following, "count": count}


def _by(key: Callable[[Any], Any], reverse: bool = False) -> Merge:
    """Return a function that merges lists, with their rows in the order of ``key``."""

    def merge(answers: list[Any]) -> Any:
        rows = (row for answer in answers for row in answer)
        return sorted(rows, key=key, reverse=reverse)[:MOST_ROWS]

    return merge


def _worst(answers: list[Any]) -> Any:
    rows = [row for answer in answers for row in answer["worst"]]
    rows.sort(key=lambda row: (-row["p99_ms"], -row["max_ms"]))
    return {**answers[0], "worst": rows[: answers[0]["count"]]}


def _inbox(answers: list[Any]) -> Any:
    """Merge lists of targets. Each broker lists all targets, and why its own wait."""
    rows: dict[str, Any] = {}
    for row in (row for answer in answers for row in answer):
        if row["reason"] is not None or row["target"] not in rows:
            rows[row["target"]] = row
    return list(rows.values())


def _forecasts(answers: list[Any]) -> Any:
    """Add the forecasts of brokers, whose counts may begin some spans apart.

    The counts have the same lengths of spans and the same origin.
    """
    by_ms, first_ms = answers[0]["by_ms"], min(answer["first_ms"] for answer in answers)
    until_ms = min(answer["until_ms"] for answer in answers)
    counts = [0] * max((until_ms - first_ms) // by_ms, 0)
    for answer in answers:
        skipped = (answer["first_ms"] - first_ms) // by_ms
        for at, count in enumerate(answer["counts"][: max(len(counts) - skipped, 0)], skipped):
            counts[at] += count
    sums = ("scheduled", "overdue", "due", "retrying", "in_flight")
    oldest_ms = [one for answer in answers if (one := answer["oldest_due_ms"]) is not None]
    return {
        **answers[0],
        "at_ms": min(answer["at_ms"] for answer in answers),
        "exact": all(answer["exact"] for answer in answers),
        "until_ms": until_ms,
        "first_ms": first_ms,
        "total": sum(counts),
        "counts": counts,
        **{name: sum(answer[name] for answer in answers) for name in sums},
        "oldest_due_ms": min(oldest_ms, default=None),
    }


def contents(answers: list[Any]) -> Any:
    """Merge what a namespace has in each bundle."""
    return {
        name: value if isinstance(value, str) else sum(answer[name] for answer in answers)
        for name, value in answers[0].items()
    }


def _figures(answers: list[Any]) -> Any:
    """Merge the figures of brokers: sums, and the different texts one after the other.

    Brokers of an earlier version lack some figures.
    """
    names = dict.fromkeys(name for answer in answers for name in answer)
    return {
        name: _figure(name, [answer[name] for answer in answers if answer.get(name) is not None])
        for name in names
    }


def _figure(name: str, values: list[Any]) -> Any:
    if not values:
        return None
    if isinstance(values[0], bool):
        return all(values)
    if name in _HIGHEST:
        return max(values)
    if isinstance(values[0], int):
        return sum(values)
    if isinstance(values[0], str):
        return ", ".join(dict.fromkeys(values))
    return _distinct(text for value in values for text in value)


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


# Verbs that each broker answers for its bundle, and the function that merges the answers. With the
# argument ``topic``, they are about this topic only.
MERGED: Final[dict[str, Merge]] = {
    "topics.list": _topics,
    "subscriptions.lateness": _worst,
    "namespaces.forecast": _forecasts,
    "subscriptions.overview": _page_of_subscriptions,
    "schedules.list": _by(lambda row: row["schedule"]),
    "push.list": _by(lambda row: (row["topic"], row["subscription"])),
    "push.secrets": _by(lambda row: (row["topic"], row["subscription"])),
    "bulk.list": _by(lambda row: (row["created_at_ms"], row["id"]), reverse=True),
    "inbox.list": _inbox,
    "broker.stats": _figures,
    "broker.update": _figures,
}


def merge_of(verb: str, arguments: Mapping[str, Any]) -> Merge | None:
    """Return the function that merges the answers of all brokers; None if not all are asked."""
    return None if arguments.get("topic") is not None else MERGED.get(verb)
