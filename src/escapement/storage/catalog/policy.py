"""Policies: the settings of a namespace, a topic or a subscription.

A policy is a frozen dataclass. Each field has a default and a rule (storage/catalog/rule.py), which
has its valid values and its help text. A new field is one line here: storage, the admin commands
``get`` and ``update`` and their options follow from it.

The database stores a policy as a JSON object of the values that differ from the defaults. If a
newer version of the program has stored fields that this version does not know, they are kept.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, ClassVar, Final, Self

from escapement.durations import format as duration_text
from escapement.errors import InvalidRequest
from escapement.storage.catalog import rule
from escapement.storage.catalog.rule import DAY_MS, Rule

# Maximum length of a stored policy: the size of the database column. The text is ASCII.
MAX_TEXT_CHARS: Final = 4_000
# Values of the field ``order`` of a subscription's policy.
ANY_ORDER: Final = "any"
KEY_ORDER: Final = "key"
TOPIC_ORDER: Final = "topic"
# Values of the field ``on_retry`` of a subscription's policy.
HOLD: Final = "hold"
SKIP: Final = "skip"
# Fields of a subscription's policy that only affect shared subscriptions.
SHARED_FIELDS: Final = ("priority_ageing_ms", "order", "on_retry", "dispatch")
# Values of the field ``quota_action`` of a namespace's or topic's policy.
REFUSE: Final = "refuse"
DROP_OLDEST: Final = "drop_oldest"
# Fields of a namespace's or topic's policy for the delays of messages.
DELAY_FIELDS: Final = ("default_delay_ms", "min_delay_ms", "max_delay_ms")
# The policy in which all fields have their defaults, by class. The topics without a policy of their
# own, perhaps a hundred thousand, share one object.
_NOTHING: Final[dict[type, Any]] = {}


def rule_of(policy: type[Policy], name: str) -> Rule:
    """Return the rule of the field ``name`` of a policy class."""
    found = next(one.metadata["rule"] for one in fields(policy) if one.name == name)
    assert isinstance(found, Rule), name
    return found


@dataclass(frozen=True, slots=True)
class Policy:
    """The base class of policies. Subclasses define the fields."""

    WHAT: ClassVar[str] = ""
    # Fields that a newer version of the program has stored, with their values.
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False, kw_only=True)

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the policy's fields, in the order of their definition."""
        return [one.name for one in fields(cls) if one.name != "unknown"]

    @classmethod
    def decode(cls, text: str) -> Self:
        """Return the policy that :meth:`encode` has encoded as ``text``."""
        if not text:
            if cls not in _NOTHING:
                _NOTHING[cls] = cls()
            nothing: Self = _NOTHING[cls]
            return nothing
        stored = json.loads(text)
        known = {name: stored.pop(name) for name in cls.names() if name in stored}
        return cls(**known, unknown=stored)

    def encode(self) -> str:
        """Encode the values that differ from the defaults as JSON; "" if there are none.

        Raises:
          InvalidRequest: if the text is longer than ``MAX_TEXT_CHARS``.
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
                f"{MAX_TEXT_CHARS} is the maximum"
            )
        return text

    def plain(self) -> dict[str, Any]:
        """Return the values of all fields, by the name of the field."""
        return {name: getattr(self, name) for name in self.names()}

    def updated(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy of this policy with some values changed.

        Args:
          changes: the new values by the name of the field. Durations, sizes and times may be text
            (``"30s"``). None resets a field to its default.

        Raises:
          InvalidRequest: if a field does not exist, a value is not valid for its field, or values
            contradict each other.
        """
        default = type(self)()
        read: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in self.names():
                raise InvalidRequest(self._unknown_field(name))
            if value is None:
                read[name] = getattr(default, name)
                continue
            try:
                read[name] = rule_of(type(self), name).read(value)
            except InvalidRequest as error:
                raise InvalidRequest(f"{name}: {error}") from None
        changed = replace(self, **read)
        changed._check_together(read)
        return changed

    def _unknown_field(self, name: Any) -> str:
        matches = get_close_matches(str(name), self.names(), n=1)
        hint = f" (did you mean {matches[0]!r}?)" if matches else ""
        known = ", ".join(self.names())
        return f"the policy of a {self.WHAT} has no field {name!r}{hint}; known are {known}"

    def _check_together(self, given: Collection[str]) -> None:
        """Raise ``InvalidRequest`` if values of this policy contradict each other.

        Args:
          given: the names of the fields being changed. The values of the others may come from an
            earlier version of the program, which allowed them.
        """


@dataclass(frozen=True, slots=True)
class NamespacePolicy(Policy):
    """The settings of a namespace."""

    WHAT: ClassVar[str] = "namespace"

    retention_ms: int = rule.duration(
        DAY_MS,
        "How long the log keeps a message after its publication once no subscription needs it. "
        "Messages that a subscription still needs are kept in any case.",
        most_ms=rule.MOST_KEEPING_MS,
    )
    retention_bytes: int = rule.number(
        0,
        1 << 62,
        "Limit for the size of messages that the log keeps although no subscription needs them. "
        "Beyond it the oldest are deleted early.",
        "no limit",
    )
    archive: bool = rule.flag(
        "Whether the log keeps messages that no subscription needs until they are archived, "
        "regardless of retention."
    )
    ttl_ms: int = rule.duration(
        0,
        "Time after its due time at which a message expires unless it is acknowledged.",
        "never",
        most_ms=rule.MOST_KEEPING_MS,
    )
    quota_messages: int = rule.number(
        0,
        1 << 53,
        "Backlog quota of each topic, in messages.",
        "no quota",
    )
    quota_bytes: int = rule.size("Backlog quota of each topic, in bytes.", "no quota")
    quota_counts: str = rule.word(
        "due",
        ("due", "all"),
        "Which pending messages count towards a quota: the due ones, or all.",
    )
    quota_action: str = rule.word(
        REFUSE,
        (REFUSE, DROP_OLDEST),
        "What happens when a quota is reached: publishing is refused, or the oldest due messages "
        "are dropped.",
    )
    total_quota_messages: int = rule.number(
        0, 1 << 53, "Backlog quota of all topics together, in messages.", "no quota"
    )
    total_quota_bytes: int = rule.size(
        "Backlog quota of all topics together, in bytes.", "no quota"
    )
    # 10,000 schedules that publish once a second take about 0.3 of a core: docs/benchmarks.md.
    max_schedules: int = rule.number(
        10_000, 1 << 53, "Maximum number of schedules; further ones are refused.", "no limit"
    )
    default_delay_ms: int = rule.duration(
        0,
        "Delay of messages that are sent with neither a delay nor a time.",
        "none",
        most_ms=rule.MOST_KEEPING_MS,
    )
    min_delay_ms: int = rule.duration(
        0,
        "Shortest delay of messages; publishing a message that is due sooner is refused.",
        "no minimum",
        most_ms=rule.MOST_KEEPING_MS,
    )
    max_delay_ms: int = rule.duration(
        0,
        "Longest delay of messages; publishing a message that is due later is refused.",
        "the broker's --max-delay",
        most_ms=rule.MOST_KEEPING_MS,
    )

    def _check_together(self, given: Collection[str]) -> None:
        _check_delays(self, given)


@dataclass(frozen=True, slots=True)
class TopicPolicy(Policy):
    """The settings of a topic."""

    WHAT: ClassVar[str] = "topic"

    paused_until_ms: int = rule.moment(
        "Deliver no message of the topic to any subscription until this time; forever: until "
        "resumed."
    )
    ttl_ms: int = rule.duration(
        0,
        "Replaces the namespace's ttl for this topic.",
        "the namespace's",
        most_ms=rule.MOST_KEEPING_MS,
    )
    quota_messages: int = rule.number(
        0, 1 << 53, "Replaces the namespace's quota for this topic.", "the namespace's"
    )
    quota_bytes: int = rule.size(
        "Replaces the namespace's quota for this topic.", "the namespace's"
    )
    quota_counts: str = rule.word(
        "namespace",
        ("namespace", "due", "all"),
        "Which pending messages count towards a quota: the due ones, or all; namespace: as the "
        "namespace's setting.",
    )
    quota_action: str = rule.word(
        "namespace",
        ("namespace", REFUSE, DROP_OLDEST),
        "What happens when a quota is reached: publishing is refused, or the oldest due messages "
        "are dropped; namespace: as the namespace's setting.",
    )
    max_publish_rate: float = rule.rate(
        "Messages per second that may be published; the broker delays publishing beyond it."
    )
    max_publish_rate_per_producer: float = rule.rate(
        "Messages per second that each producer may publish."
    )
    dedup_window_ms: int = rule.duration(
        600_000,
        "How long after a publish another message with the same dedup key counts as a duplicate.",
        "dedup keys are ignored",
    )
    group_retention_ms: int = rule.duration(
        86_400_000, "How long a group is remembered after its last follow-up has fired."
    )
    default_delay_ms: int = rule.duration(
        0,
        "Replaces the namespace's default_delay for this topic.",
        "the namespace's",
        most_ms=rule.MOST_KEEPING_MS,
    )
    min_delay_ms: int = rule.duration(
        0,
        "Replaces the namespace's min_delay for this topic.",
        "the namespace's",
        most_ms=rule.MOST_KEEPING_MS,
    )
    max_delay_ms: int = rule.duration(
        0,
        "Replaces the namespace's max_delay for this topic.",
        "the namespace's",
        most_ms=rule.MOST_KEEPING_MS,
    )

    def _check_together(self, given: Collection[str]) -> None:
        _check_delays(self, given)


@dataclass(frozen=True, slots=True)
class SubscriptionPolicy(Policy):
    """The settings of a subscription."""

    WHAT: ClassVar[str] = "subscription"

    ack_wait_ms: int = rule.duration(
        0,
        "How long a message may stay unacknowledged before it is redelivered, unless the consumer "
        "sets its own time. Doubles with each attempt. At most max_backoff.",
        "the broker's, or no limit if not shared",
    )
    min_backoff_ms: int = rule.duration(
        0, "Shortest wait for a retry or an acknowledgement.", "none"
    )
    max_backoff_ms: int = rule.duration(
        0, "Longest wait for a retry or an acknowledgement.", "no limit"
    )
    jitter: float = rule.share(
        0.33,
        "Random extra on each wait, up to this share of it and within max_backoff, to spread out "
        "retries.",
    )
    priority_ageing_ms: int = rule.duration(
        1_000,
        "Weight of one priority step, if shared: a message precedes messages that are due up to "
        "this much earlier, for each step by which its priority number is lower.",
        "nothing",
    )
    order: str = rule.word(
        ANY_ORDER,
        (ANY_ORDER, KEY_ORDER, TOPIC_ORDER),
        "Order of delivery, if shared. key, topic: only one message of a key, or of the topic, is "
        "in flight at a time, and the next follows when it is done. any: no such order.",
    )
    on_retry: str = rule.word(
        HOLD,
        (HOLD, SKIP),
        "If order is key or topic: whether a message in retry holds up the messages after it, or "
        "is skipped.",
    )
    # At most 30,000, because the number of deliveries is stored in 15 bits.
    max_deliveries: int = rule.number(
        0,
        30_000,
        "Number of failed deliveries after which a message goes to the dead-letter topic.",
        "no limit",
    )
    dead_letter_topic: str = rule.topic("", "Topic for dead letters.", "TOPIC-SUBSCRIPTION-DLQ")
    expired_to_dead_letter: bool = rule.flag(
        "Whether messages that expire go to the dead-letter topic."
    )
    dropped_to_dead_letter: bool = rule.flag(
        "Whether messages that a backlog quota drops go to the dead-letter topic."
    )
    paused_until_ms: int = rule.moment(
        "Deliver no message until this time; forever: until resumed."
    )
    max_rate: float = rule.rate("Messages per second that are delivered.")
    max_in_flight: int = rule.number(
        0, 4_000_000, "Messages in flight to all consumers together.", "the broker's limit"
    )
    dispatch: str = rule.word(
        "round_robin",
        ("round_robin", "least_busy"),
        "Which consumer of a shared subscription gets the next messages: each in turn, or the one "
        "with the fewest in flight.",
    )

    def _check_together(self, given: Collection[str]) -> None:
        if 0 < self.max_backoff_ms < self.min_backoff_ms:
            raise InvalidRequest(
                f"max_backoff_ms of {duration_text(self.max_backoff_ms)} is shorter than "
                f"min_backoff_ms of {duration_text(self.min_backoff_ms)}"
            )
        asked = "ack_wait_ms" in given or "max_backoff_ms" in given
        if asked and 0 < self.max_backoff_ms < self.ack_wait_ms:
            raise InvalidRequest(
                f"ack_wait_ms of {duration_text(self.ack_wait_ms)} is longer than "
                f"max_backoff_ms of {duration_text(self.max_backoff_ms)}, which limits every wait"
            )


def _check_delays(policy: NamespacePolicy | TopicPolicy, given: Collection[str]) -> None:
    """Raise ``InvalidRequest`` if delays of a policy contradict each other; see ``DELAY_FIELDS``.

    A topic's policy may still contradict its namespace's. Then publishing is refused.
    """
    if not any(name in given for name in DELAY_FIELDS):
        return
    default_ms, least_ms, most_ms = (getattr(policy, name) for name in DELAY_FIELDS)
    for shorter, shorter_ms, longer, longer_ms in (
        ("max_delay_ms", most_ms, "min_delay_ms", least_ms),
        ("default_delay_ms", default_ms, "min_delay_ms", least_ms),
        ("max_delay_ms", most_ms, "default_delay_ms", default_ms),
    ):
        if 0 < shorter_ms < longer_ms:
            raise InvalidRequest(
                f"{shorter} of {duration_text(shorter_ms)} is shorter than "
                f"{longer} of {duration_text(longer_ms)}"
            )
