"""The selection of messages to read: ranges of offsets and times, from options and filters.

Options have the names of Spark's Kafka source where that has an equivalent; docs/spark-options.md
lists them. Ranges are half-open. A *bound* is an offset, or one of the words ``earliest`` and
``latest``. Narrowing a range by a filter never excludes a message that passes the filter. It may
keep messages that do not pass, because Spark evaluates the filter again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from escapement.clock import unix_ms
from escapement.errors import InvalidRequest
from escapement.message import Int64s
from escapement.names import TopicName
from escapement.pipeline.options import Options

# A number above every offset and every time.
END: Final = 1 << 62
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
# The numbers that stand for ``earliest`` and ``latest`` in the JSON of Kafka's options.
_KAFKAS: Final = {"-2": EARLIEST, "-1": LATEST}

# Groups of options of batch and streaming reads.
TOPIC_OPTIONS: Final = ("topic", "topics", "subscription", "failOnDataLoss")
TIME_OPTIONS: Final = (
    "startingTimestamp",
    "endingTimestamp",
    "startingDeliverAt",
    "endingDeliverAt",
)
SPLIT_OPTIONS: Final = ("minPartitions", "maxRecordsPerPartition")

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Span:
    """A range ``[low, high)`` of offsets, or of Unix milliseconds."""

    low: int = 0
    high: int = END

    def __and__(self, other: Span) -> Span:
        return Span(max(self.low, other.low), min(self.high, other.high))

    @staticmethod
    def merged(spans: Iterable[Span]) -> list[Span]:
        """Return the spans in ascending order, merged where they touch or overlap."""
        found: list[Span] = []
        for span in sorted(spans, key=lambda span: span.low):
            if found and span.low <= found[-1].high:
                found[-1] = replace(found[-1], high=max(found[-1].high, span.high))
            else:
                found.append(span)
        return found

    def meets(self, lowest: int, highest: int) -> bool:
        """Return whether the range overlaps ``[lowest, highest]``, both inclusive."""
        return lowest < self.high and highest >= self.low

    def covers(self, values: Int64s) -> bool:
        """Return whether all values are in the range."""
        return not len(values) or bool(values.min() >= self.low and values.max() < self.high)


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of a topic's messages by offset, publish time and current due time."""

    offsets: Span = Span()
    published: Span = Span()
    due: Span = Span()

    def narrowed(self, column: str, operator: str, value: Any) -> Selection:
        """Return the part of the selection whose messages may pass ``column operator value``.

        ``operator`` is one of ``= < <= > >=``. Only filters on ``offset``, ``published_at`` and
        ``deliver_at`` narrow the selection, and only with a value of the column's type.
        """
        if column == "offset" and type(value) is int:
            return replace(self, offsets=self.offsets & _span(operator, value, value))
        if column in ("published_at", "deliver_at") and isinstance(value, datetime):
            if value.tzinfo is None:
                return self
            # A value may lie between two milliseconds. The range includes both of them.
            at_ms = unix_ms(value)
            span = _span(operator, at_ms - 1, at_ms + 1)
            if column == "published_at":
                return replace(self, published=self.published & span)
            return replace(self, due=self.due & span)
        return self


def _span(operator: str, lowest: int, highest: int) -> Span:
    """Return the range of numbers that may pass a filter.

    The filter compares by ``operator`` with a value that is known to be between ``lowest`` and
    ``highest``.
    """
    low = {"=": lowest, ">=": lowest, ">": lowest + 1}.get(operator, 0)
    high = {"=": highest + 1, "<=": highest + 1, "<": highest}.get(operator, END)
    return Span(max(low, 0), high)


def topics(options: Options) -> tuple[TopicName, ...]:
    """Return the topics that the options name, each once. Raises ``InvalidRequest``."""
    one, several = options.text("topic"), options.text("topics")
    names = [name for text in (several or "").split(",") if (name := text.strip())]
    if (one is None) == (not names):
        raise InvalidRequest(
            "the topic is missing or given twice: give either the option topic, or the option"
            " topics (several names, separated by commas)"
        )
    return tuple(dict.fromkeys(map(TopicName.parse, names if one is None else [one])))


def times(options: Options) -> Selection:
    """Return a selection by the times in the options. Raises ``InvalidRequest``."""
    published = Span(_time(options, "startingTimestamp", 0), _time(options, "endingTimestamp", END))
    due = Span(_time(options, "startingDeliverAt", 0), _time(options, "endingDeliverAt", END))
    return Selection(Span(), published, due)


def _time(options: Options, name: str, default: int) -> int:
    """Parse an option of Unix milliseconds, or of a date and time with an offset from UTC."""
    text = options.text(name)
    if text is None:
        return default
    if _INTEGER.fullmatch(text):
        return int(text)
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        read = None
    if read is None or read.tzinfo is None:
        raise InvalidRequest(
            f"the option {name} must be Unix milliseconds, or a date and time with its offset from"
            f" UTC (2027-01-31T09:00:00+01:00), not {text!r}"
        )
    return unix_ms(read)


class Bounds:
    """The bounds, one for each topic, at which a read starts or ends."""

    def __init__(self, options: Options, name: str, default: str, empty: str | None = None) -> None:
        """Parse the option ``name``: one bound for all topics, or a JSON object by topic.

        Args:
          default: the bound in topics that the option does not name.
          empty: a bound that is refused, because nothing could be read from there or up to there.

        Raises:
          InvalidRequest: if the option is not valid.
        """
        self._name = name
        self._empty = empty
        self._default: int | str = default
        self._by_topic: dict[TopicName, int | str] = {}
        text = options.text(name)
        if text is None:
            return
        if not text.startswith("{"):
            self._default = self._bound(text)
            return
        try:
            given = json.loads(text)
        except ValueError:
            raise InvalidRequest(f"the option {name} is not a JSON object: {text!r}") from None
        for topic, bound in given.items():
            self._by_topic[TopicName.parse(topic)] = self._bound(str(bound))

    def check(self, known: tuple[TopicName, ...]) -> None:
        """Raise ``InvalidRequest`` if the option names a topic that is not among ``known``."""
        strange = self._by_topic.keys() - set(known)
        if strange:
            raise InvalidRequest(
                f"the option {self._name} names {min(strange)}, which is not read: remove it, or"
                " add it to the option topics"
            )

    def of(self, topic: TopicName) -> int | str:
        """Return the bound at which the read starts or ends in a topic."""
        return self._by_topic.get(topic, self._default)

    def _bound(self, text: str) -> int | str:
        bound = _KAFKAS.get(text, text.lower())
        if bound == self._empty:
            raise InvalidRequest(
                f"with {self._name} {text} a batch would read nothing: give another offset"
            )
        if bound in (EARLIEST, LATEST):
            return bound
        if _INTEGER.fullmatch(text) and int(text) >= 0:
            return int(text)
        raise InvalidRequest(
            f"the option {self._name} must be earliest, latest or an offset, or a JSON object of"
            f' these by topic ({{"orders": 120}}), not {text!r}'
        )
