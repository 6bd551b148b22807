"""What may be decided for a namespace, a topic or a subscription: its policy.

A policy is a frozen dataclass, and each of its fields has a default and a rule: what a
value may be, and what it is for. A new field is one line here; storage, the verbs
``*.get`` and ``*.update`` and their options on the command line follow from it.

The database has a policy as a JSON object of what differs from the defaults. What a
newer program stored there and this one does not know is kept as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, Self, TypeVar

from escapement.durations import format as duration_text
from escapement.durations import parse as parse_duration
from escapement.errors import InvalidRequest
from escapement.names import TopicName

# What the column takes; the text is ASCII.
MAX_TEXT_CHARS: Final = 4_000
DAY_MS: Final = 86_400_000
# A year: nothing that waits longer for a consumer is still being worked on.
_MOST_WAIT_MS: Final = 366 * DAY_MS
# More than any machine moves.
_MOST_RATE: Final = 1_000_000_000
_SIZE: Final = re.compile(r"([0-9]{1,9})(KiB|MiB|GiB)")
_SHIFT: Final = {"KiB": 10, "MiB": 20, "GiB": 30}
# A pause without an end; the last moment that a policy can name.
FOREVER_MS: Final = (1 << 62) - 1
# Values of ``SubscriptionPolicy.order`` and ``on_retry``.
ANY_ORDER: Final = "any"
KEY_ORDER: Final = "key"
TOPIC_ORDER: Final = "topic"
# Fields of ``SubscriptionPolicy`` that say something to shared subscriptions only.
SHARED_FIELDS: Final = ("priority_ageing_ms", "order", "on_retry", "dispatch")
# Values of ``quota_action``.
REFUSE: Final = "refuse"
DROP_OLDEST: Final = "drop_oldest"
HOLD: Final = "hold"
SKIP: Final = "skip"
# The defaults of each kind, once: most of a hundred thousand topics have no policy.
_NOTHING: Final[dict[type, Any]] = {}

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Rule:
    """What the values of one field may be.

    Args:
      help: what the field decides, as a sentence.
      metavar: what stands for a value in a command's help.
      read: the value, from a plain value or from text; raises ``InvalidRequest``.
    """

    help: str
    metavar: str
    read: Callable[[Any], Any]


def rule_of(policy: type[Policy], name: str) -> Rule:
    """The rule of a field."""
    rule = next(one.metadata["rule"] for one in fields(policy) if one.name == name)
    assert isinstance(rule, Rule), name
    return rule


# -- kinds of fields ---------------------------------------------------------------


def _ruled(default: Value, help: str, metavar: str, read: Callable[[Any], Any]) -> Value:
    value: Value = field(default=default, metadata={"rule": Rule(help, metavar, read)})
    return value


def _duration(default_ms: int, help: str) -> int:
    """Milliseconds, or text such as ``30s``; the field's name ends in ``_ms``."""

    def read(value: Any) -> int:
        found = parse_duration(value) if isinstance(value, str) else _whole(value)
        if found > _MOST_WAIT_MS:
            raise InvalidRequest(f"{duration_text(found)} is longer than 366 days")
        return found

    return _ruled(default_ms, help, "DURATION", read)


def _share(default: float, help: str) -> float:
    """A part of a whole: 0 to 1."""

    def read(value: Any) -> float:
        try:
            found = float(value)
        except (TypeError, ValueError):
            raise InvalidRequest(f"{value!r} is not a number from 0 to 1") from None
        if not 0 <= found <= 1:
            raise InvalidRequest(f"{value!r} is not from 0 to 1")
        return found

    return _ruled(default, help, "SHARE", read)


def _word(default: str, words: tuple[str, ...], help: str) -> str:
    """One of a few words, the default among them."""

    def read(value: Any) -> str:
        if value not in words:
            raise InvalidRequest(f"{value!r} is not one of {', '.join(words)}")
        found: str = value
        return found

    return _ruled(default, help, "|".join(words), read)


def _number(default: int, most: int, help: str) -> int:
    """A whole number from 0 to ``most``."""

    def read(value: Any) -> int:
        found = _whole(value)
        if found > most:
            raise InvalidRequest(f"{found} is more than {most}")
        return found

    return _ruled(default, help, "NUMBER", read)


def _rate(help: str) -> float:
    """Messages a second, in thousandths; 0 is no limit."""

    def read(value: Any) -> float:
        try:
            found = round(float(value), 3)
        except (TypeError, ValueError, OverflowError):
            raise InvalidRequest(f"{value!r} is not a number of messages a second") from None
        if not 0 <= found <= _MOST_RATE or (found == 0 and float(value) != 0):
            raise InvalidRequest(
                f"{value!r} is no rate: write 0 for no limit, or from 0.001 to {_MOST_RATE}"
            )
        return found

    return _ruled(0.0, help, "RATE", read)


def _size(help: str) -> int:
    """Bytes, or text such as ``64MiB``; 0 is none."""

    def read(value: Any) -> int:
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        return _whole(value) if match is None else int(match[1]) << _SHIFT[match[2]]

    return _ruled(0, help, "SIZE", read)


def _flag(help: str) -> bool:
    """Yes or no; no is the default."""

    def read(value: Any) -> bool:
        if value in ("yes", "no"):
            return bool(value == "yes")
        if type(value) is not bool:
            raise InvalidRequest(f"{value!r} is neither yes nor no")
        return value

    return _ruled(False, help, "yes|no", read)


def _topic(default: str, help: str) -> str:
    """A topic's name, kept in full; "" for none."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidRequest(f"{value!r} is not the name of a topic")
        return TopicName.parse(value).full if value else ""

    return _ruled(default, help, "TOPIC", read)


def _moment(help: str) -> int:
    """Unix milliseconds, or text: an aware ISO 8601 time, or ``forever``; 0 is never."""

    def read(value: Any) -> int:
        if value == "forever":
            return FOREVER_MS
        if isinstance(value, str) and not value.isdigit():
            try:
                at = datetime.fromisoformat(value)
            except ValueError:
                at = None
            if at is None or at.utcoffset() is None:
                raise InvalidRequest(
                    f"{value!r} is neither forever nor a time with a zone, such as "
                    "2026-12-24T18:00+01:00"
                )
            return max(0, -((_EPOCH - at) // _MILLISECOND))
        return _whole(value)

    return _ruled(0, help, "TIME", read)


def _whole(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise InvalidRequest(f"{value!r} is not a whole number from 0 on")
    return value


# -- policies ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Policy:
    """What all policies can do; the fields are those of its subclasses."""

    WHAT: ClassVar[str] = ""
    # What is stored and not known to this program.
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False, kw_only=True)

    @classmethod
    def names(cls) -> list[str]:
        """The names of the fields, in their order."""
        return [one.name for one in fields(cls) if one.name != "unknown"]

    @classmethod
    def decode(cls, text: str) -> Self:
        """The policy that ``encode`` wrote."""
        if not text:
            nothing: Self = _NOTHING.setdefault(cls, cls())
            return nothing
        stored = json.loads(text)
        known = {name: stored.pop(name) for name in cls.names() if name in stored}
        return cls(**known, unknown=stored)

    def encode(self) -> str:
        """What differs from the defaults, as JSON; "" for nothing.

        Raises:
          InvalidRequest: if that is longer than ``MAX_TEXT_CHARS``.
        """
        default = type(self)()
        changed = {
            name: value for name, value in self.plain().items() if value != getattr(default, name)
        }
        stored = dict(self.unknown) | changed
        text = json.dumps(stored) if stored else ""
        if len(text) > MAX_TEXT_CHARS:
            raise InvalidRequest(
                f"the policy of a {self.WHAT} takes {len(text)} characters; "
                f"{MAX_TEXT_CHARS} is the most"
            )
        return text

    def plain(self) -> dict[str, Any]:
        """Every field's value by its name."""
        return {name: getattr(self, name) for name in self.names()}

    def updated(self, changes: Mapping[str, Any]) -> Self:
        """This policy with some values changed.

        Args:
          changes: values by field, as they are or as text (``"30s"``); None sets a field
            back to its default.

        Raises:
          InvalidRequest: for a field that there is not, a value that its rule refuses,
            or values that do not fit each other.
        """
        default = type(self)()
        read: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in self.names():
                known = ", ".join(self.names()) or "none"
                raise InvalidRequest(
                    f"the policy of a {self.WHAT} has no field {name!r}; known are {known}"
                )
            if value is None:
                read[name] = getattr(default, name)
                continue
            try:
                read[name] = rule_of(type(self), name).read(value)
            except InvalidRequest as error:
                raise InvalidRequest(f"{name}: {error}") from None
        changed = replace(self, **read)
        changed._check_together()
        return changed

    def _check_together(self) -> None:
        """Raise ``InvalidRequest`` for values that do not fit each other."""


@dataclass(frozen=True, slots=True)
class NamespacePolicy(Policy):
    """What may be decided for a namespace."""

    WHAT: ClassVar[str] = "namespace"

    retention_ms: int = _duration(
        DAY_MS,
        "How long messages are kept, from their publication on, that nobody is to get any "
        "more; whatever somebody is to get is kept anyway.",
    )
    retention_bytes: int = _number(
        0,
        1 << 62,
        "Of those, no more is kept than this many bytes of the log, however young; 0: no bound.",
    )
    ttl_ms: int = _duration(
        0, "So long after its delivery time a message that is not acknowledged expires; 0: never."
    )
    quota_messages: int = _number(
        0,
        1 << 53,
        "Of each topic: when so many messages wait, publishing is refused for now; 0: no quota.",
    )
    quota_bytes: int = _size("Of each topic: the same for their size; 0: no quota.")
    quota_counts: str = _word(
        "due", ("due", "all"), "Whether what is not yet due counts: due, or all there is."
    )
    quota_action: str = _word(
        REFUSE,
        (REFUSE, DROP_OLDEST),
        "What happens when a quota is met: publishing is refused for now, or the oldest due "
        "messages are dropped.",
    )
    total_quota_messages: int = _number(
        0, 1 << 53, "Of all topics together: the same for their sum; 0: no quota."
    )
    total_quota_bytes: int = _size("Of all topics together: the same for their size; 0: no quota.")


@dataclass(frozen=True, slots=True)
class TopicPolicy(Policy):
    """What may be decided for a topic."""

    WHAT: ClassVar[str] = "topic"

    paused_until_ms: int = _moment(
        "Until then nothing of it is handed out, to any subscription; forever: until it is resumed."
    )
    ttl_ms: int = _duration(0, "As of the namespace, for this topic; 0: the namespace's.")
    quota_messages: int = _number(
        0, 1 << 53, "As of the namespace, for this topic; 0: the namespace's."
    )
    quota_bytes: int = _size("As of the namespace, for this topic; 0: the namespace's.")
    quota_counts: str = _word(
        "namespace",
        ("namespace", "due", "all"),
        "As of the namespace, for this topic, or the namespace's.",
    )
    quota_action: str = _word(
        "namespace",
        ("namespace", REFUSE, DROP_OLDEST),
        "As of the namespace, for this topic, or the namespace's.",
    )
    max_publish_rate: float = _rate(
        "Messages a second that may be published; more are held back. 0: no limit."
    )
    max_publish_rate_per_producer: float = _rate(
        "Messages a second that each producer may publish. 0: no limit."
    )
    dedup_window_ms: int = _duration(
        600_000,
        "How long after a message was published another with its dedup key is taken for the "
        "same; 0: dedup keys are ignored.",
    )
    group_retention_ms: int = _duration(
        86_400_000, "How long a group is remembered after its last follow-up has fired."
    )


@dataclass(frozen=True, slots=True)
class SubscriptionPolicy(Policy):
    """What may be decided for a subscription."""

    WHAT: ClassVar[str] = "subscription"

    ack_wait_ms: int = _duration(
        0,
        "How long a message may go unacknowledged, where its consumer does not say; doubled "
        "with each attempt. 0: the broker's, or without end if not shared.",
    )
    min_backoff_ms: int = _duration(0, "No wait for another attempt is shorter.")
    max_backoff_ms: int = _duration(0, "No wait for another attempt is longer; 0: no bound.")
    jitter: float = _share(
        0.33,
        "Up to this share of a wait is added to it, within max_backoff, so that not all come back "
        "at once.",
    )
    priority_ageing_ms: int = _duration(
        1_000,
        "What a step of priority is worth, if shared: a message goes before what is due up to "
        "this much earlier for each step that its priority is the lower number. 0: nothing.",
    )
    order: str = _word(
        ANY_ORDER,
        (ANY_ORDER, KEY_ORDER, TOPIC_ORDER),
        "If shared: one message of a key, or of the topic, is out at a time, the next when it "
        "is done. any: no such order.",
    )
    on_retry: str = _word(
        HOLD,
        (HOLD, SKIP),
        "Whether a message that waits for another attempt holds up those behind it in that "
        "order, or is skipped.",
    )
    # Attempts are counted in 15 bits.
    max_deliveries: int = _number(
        0,
        30_000,
        "A message that has failed so often goes to the dead-letter topic; 0: it is tried "
        "without end.",
    )
    dead_letter_topic: str = _topic(
        "", "Where dead letters go; TOPIC-SUBSCRIPTION-DLQ, where nothing is said."
    )
    expired_to_dead_letter: bool = _flag(
        "Whether messages that expire go to the dead-letter topic."
    )
    dropped_to_dead_letter: bool = _flag(
        "Whether messages that a backlog quota drops go to the dead-letter topic."
    )
    paused_until_ms: int = _moment(
        "Until then nothing is handed out; forever: until it is resumed."
    )
    max_rate: float = _rate("Messages a second that are handed out. 0: no limit.")
    max_in_flight: int = _number(
        0, 4_000_000, "Messages in the hands of all consumers together. 0: the broker's bound."
    )
    dispatch: str = _word(
        "round_robin",
        ("round_robin", "least_busy"),
        "Who gets the next messages of a shared subscription: consumers in turn, or who holds "
        "the fewest.",
    )

    def _check_together(self) -> None:
        if 0 < self.max_backoff_ms < self.min_backoff_ms:
            raise InvalidRequest(
                f"max_backoff_ms of {duration_text(self.max_backoff_ms)} is shorter than "
                f"min_backoff_ms of {duration_text(self.min_backoff_ms)}"
            )
