"""What of a topic is to be read: ranges of offsets and of times, from options and filters.

The names of options are those of Spark's Kafka source where it has one for the same thing;
docs/spark.md has the table. Ranges are half-open, and narrowing never takes away what a
filter would let through: Spark looks at every row again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from escapement.errors import InvalidRequest
from escapement.message import Int64s
from escapement.names import TopicName
from escapement.pipeline.options import Options

# Beyond every offset and every time.
END: Final = 1 << 62
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
# As Kafka has it in JSON.
_KAFKAS: Final = {"-2": EARLIEST, "-1": LATEST}

# Options of every read, and those of a batch or a stream alone.
TOPIC_OPTIONS: Final = ("topic", "topics", "subscription", "failOnDataLoss")
TIME_OPTIONS: Final = (
    "startingTimestamp",
    "endingTimestamp",
    "startingDeliverAt",
    "endingDeliverAt",
)
SPLIT_OPTIONS: Final = ("minPartitions", "maxRecordsPerPartition")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Span:
    """``[low, high)`` of offsets, or of Unix milliseconds."""

    low: int = 0
    high: int = END

    def __and__(self, other: Span) -> Span:
        return Span(max(self.low, other.low), min(self.high, other.high))

    @staticmethod
    def merged(spans: Iterable[Span]) -> list[Span]:
        """Those that meet or overlap as one; ascending."""
        found: list[Span] = []
        for span in sorted(spans, key=lambda span: span.low):
            if found and span.low <= found[-1].high:
                found[-1] = replace(found[-1], high=max(found[-1].high, span.high))
            else:
                found.append(span)
        return found

    def meets(self, lowest: int, highest: int) -> bool:
        """Whether any of ``[lowest, highest]``, both included, may be in it."""
        return lowest < self.high and highest >= self.low

    def covers(self, values: Int64s) -> bool:
        """Whether all of these are in it."""
        return not len(values) or bool(values.min() >= self.low and values.max() < self.high)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages of a topic: by offset, by when published, by when due now."""

    offsets: Span = Span()
    published: Span = Span()
    due: Span = Span()

    def narrowed(self, column: str, operator: str, value: Any) -> Selection:
        """Without what ``column operator value`` excludes, as far as that is a range.

        ``operator`` is one of ``= < <= > >=``; whatever else is asked narrows nothing.
        """
        if column == "offset" and type(value) is int:
            return replace(self, offsets=self.offsets & _span(operator, value, value))
        if column in ("published_at", "deliver_at") and isinstance(value, datetime):
            if value.tzinfo is None:
                return self
            # Of what is finer than a millisecond either neighbour may be meant.
            low_ms = (value - _EPOCH) // _MS - 1
            span = _span(operator, low_ms, low_ms + 2)
            if column == "published_at":
                return replace(self, published=self.published & span)
            return replace(self, due=self.due & span)
        return self


def _span(operator: str, lowest: int, highest: int) -> Span:
    """What a value between these two lets through."""
    low = {"=": lowest, ">=": lowest, ">": lowest + 1}.get(operator, 0)
    high = {"=": highest + 1, "<=": highest + 1, "<": highest}.get(operator, END)
    return Span(max(low, 0), high)


def topics(options: Options) -> tuple[TopicName, ...]:
    """The topics to be read, each once. Raises ``InvalidRequest``."""
    one, several = options.text("topic"), options.text("topics")
    names = [name for text in (several or "").split(",") if (name := text.strip())]
    if (one is None) == (not names):
        raise InvalidRequest(
            "which topic? Give the option topic, or topics (several, with commas between): one"
            " of the two"
        )
    return tuple(dict.fromkeys(map(TopicName.parse, names if one is None else [one])))


def times(options: Options) -> Selection:
    """The ranges of times that the options give. Raises ``InvalidRequest``."""
    published = Span(_time(options, "startingTimestamp", 0), _time(options, "endingTimestamp", END))
    due = Span(_time(options, "startingDeliverAt", 0), _time(options, "endingDeliverAt", END))
    return Selection(Span(), published, due)


def _time(options: Options, name: str, default: int) -> int:
    """Unix milliseconds, or a date and time with an offset from UTC."""
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
            f"the option {name} is Unix milliseconds, or a date and time with its offset from"
            f" UTC (2027-01-31T09:00:00+01:00), not {text!r}"
        )
    # A message of the millisecond that the instant lies in is not before it.
    return -((_EPOCH - read) // _MS)


class Places:
    """Where to begin or to end in each topic: an offset, ``earliest`` or ``latest``."""

    def __init__(self, options: Options, name: str, default: str, empty: str | None = None) -> None:
        """The option ``name``: one of these for all topics, or a JSON object by topic.

        Args:
          empty: a place that leaves nothing to be read, and is refused.

        Raises:
          InvalidRequest: if it is anything else.
        """
        self._name = name
        self._empty = empty
        self._default: int | str = default
        self._by_topic: dict[TopicName, int | str] = {}
        text = options.text(name)
        if text is None:
            return
        if not text.startswith("{"):
            self._default = self._place(text)
            return
        try:
            given = json.loads(text)
        except ValueError:
            raise InvalidRequest(f"the option {name} is no JSON object: {text!r}") from None
        for topic, place in given.items():
            self._by_topic[TopicName.parse(topic)] = self._place(str(place))

    def check(self, known: tuple[TopicName, ...]) -> None:
        """Raise ``InvalidRequest`` if it names a topic that is not read."""
        strange = self._by_topic.keys() - set(known)
        if strange:
            raise InvalidRequest(f"the option {self._name} names {min(strange)}: it is not read")

    def of(self, topic: TopicName) -> int | str:
        """The place in this topic."""
        return self._by_topic.get(topic, self._default)

    def _place(self, text: str) -> int | str:
        place = _KAFKAS.get(text, text.lower())
        if place == self._empty:
            raise InvalidRequest(f"with {self._name} {text} a batch would read nothing")
        if place in (EARLIEST, LATEST):
            return place
        if _INTEGER.fullmatch(text) and int(text) >= 0:
            return int(text)
        raise InvalidRequest(
            f"the option {self._name} is earliest, latest or an offset, or a JSON object of"
            f' these by topic ({{"orders": 120}}), not {text!r}'
        )
