"""What may be decided for a namespace, a topic or a subscription: its policy.

A policy is a frozen dataclass, and each of its fields has a default and a rule: what a
value may be, and what it is for. A new field is one line here; storage, the verbs
``*.get`` and ``*.update`` and their options on the command line follow from it.

The database has a policy as a JSON object of what differs from the defaults. What a
newer program stored there and this one does not know is kept as it is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Self

from escapement.durations import format as duration_text
from escapement.errors import InvalidRequest
from escapement.storage import rule
from escapement.storage.rule import DAY_MS, Rule

# What the column takes; the text is ASCII.
MAX_TEXT_CHARS: Final = 4_000
# Values of ``SubscriptionPolicy.order``, then of ``on_retry``.
ANY_ORDER: Final = "any"
KEY_ORDER: Final = "key"
TOPIC_ORDER: Final = "topic"
HOLD: Final = "hold"
SKIP: Final = "skip"
# Fields of ``SubscriptionPolicy`` that say something to shared subscriptions only.
SHARED_FIELDS: Final = ("priority_ageing_ms", "order", "on_retry", "dispatch")
# Values of ``quota_action``.
REFUSE: Final = "refuse"
DROP_OLDEST: Final = "drop_oldest"
# The defaults of each kind, once: most of a hundred thousand topics have no policy.
_NOTHING: Final[dict[type, Any]] = {}


def rule_of(policy: type[Policy], name: str) -> Rule:
    """The rule of a field."""
    found = next(one.metadata["rule"] for one in fields(policy) if one.name == name)
    assert isinstance(found, Rule), name
    return found


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
        changed._check_together(read)
        return changed

    def _check_together(self, given: Collection[str]) -> None:
        """Raise ``InvalidRequest`` for values that do not fit each other.

        Args:
          given: the fields that were asked for; others may have been stored by an earlier version.
        """


@dataclass(frozen=True, slots=True)
class NamespacePolicy(Policy):
    """What may be decided for a namespace."""

    WHAT: ClassVar[str] = "namespace"

    retention_ms: int = rule.duration(
        DAY_MS,
        "How long messages are kept, from their publication on, that nobody is to get any "
        "more; whatever somebody is to get is kept anyway.",
        most_ms=rule.MOST_KEEPING_MS,
    )
    retention_bytes: int = rule.number(
        0,
        1 << 62,
        "Of those, no more is kept than this many bytes of the log, however young.",
        "no bound",
    )
    archive: bool = rule.flag(
        "Whether the log keeps what nobody is to get any more until it is archived, "
        "whatever retention says."
    )
    ttl_ms: int = rule.duration(
        0,
        "So long after its delivery time a message that is not acknowledged expires.",
        "never",
        most_ms=rule.MOST_KEEPING_MS,
    )
    quota_messages: int = rule.number(
        0,
        1 << 53,
        "Of each topic: when so many messages wait, publishing is refused for now.",
        "no quota",
    )
    quota_bytes: int = rule.size("Of each topic: the same for their size.", "no quota")
    quota_counts: str = rule.word(
        "due", ("due", "all"), "Whether what is not yet due counts: due, or all there is."
    )
    quota_action: str = rule.word(
        REFUSE,
        (REFUSE, DROP_OLDEST),
        "What happens when a quota is met: publishing is refused for now, or the oldest due "
        "messages are dropped.",
    )
    total_quota_messages: int = rule.number(
        0, 1 << 53, "Of all topics together: the same for their sum.", "no quota"
    )
    total_quota_bytes: int = rule.size(
        "Of all topics together: the same for their size.", "no quota"
    )
    # Of once a second each, they take some 0.3 of a core: docs/benchmarks.md.
    max_schedules: int = rule.number(
        10_000, 1 << 53, "Schedules that it may have; the next one is refused.", "no limit"
    )


@dataclass(frozen=True, slots=True)
class TopicPolicy(Policy):
    """What may be decided for a topic."""

    WHAT: ClassVar[str] = "topic"

    paused_until_ms: int = rule.moment(
        "Until then nothing of it is handed out, to any subscription; forever: until it is resumed."
    )
    ttl_ms: int = rule.duration(
        0,
        "As of the namespace, for this topic.",
        "the namespace's",
        most_ms=rule.MOST_KEEPING_MS,
    )
    quota_messages: int = rule.number(
        0, 1 << 53, "As of the namespace, for this topic.", "the namespace's"
    )
    quota_bytes: int = rule.size("As of the namespace, for this topic.", "the namespace's")
    quota_counts: str = rule.word(
        "namespace",
        ("namespace", "due", "all"),
        "As of the namespace, for this topic, or the namespace's.",
    )
    quota_action: str = rule.word(
        "namespace",
        ("namespace", REFUSE, DROP_OLDEST),
        "As of the namespace, for this topic, or the namespace's.",
    )
    max_publish_rate: float = rule.rate(
        "Messages a second that may be published; more are held back."
    )
    max_publish_rate_per_producer: float = rule.rate(
        "Messages a second that each producer may publish."
    )
    dedup_window_ms: int = rule.duration(
        600_000,
        "How long after a message was published another with its dedup key is taken for the same.",
        "dedup keys are ignored",
    )
    group_retention_ms: int = rule.duration(
        86_400_000, "How long a group is remembered after its last follow-up has fired."
    )


@dataclass(frozen=True, slots=True)
class SubscriptionPolicy(Policy):
    """What may be decided for a subscription."""

    WHAT: ClassVar[str] = "subscription"

    ack_wait_ms: int = rule.duration(
        0,
        "How long a message may go unacknowledged, where its consumer does not say; doubled "
        "with each attempt. Not longer than max_backoff.",
        "the broker's, or without end if not shared",
    )
    min_backoff_ms: int = rule.duration(
        0, "No wait for another attempt, or for an acknowledgement, is shorter.", "none"
    )
    max_backoff_ms: int = rule.duration(
        0, "No wait for another attempt, or for an acknowledgement, is longer.", "no bound"
    )
    jitter: float = rule.share(
        0.33,
        "Up to this share of a wait is added to it, within max_backoff, so that not all come back "
        "at once.",
    )
    priority_ageing_ms: int = rule.duration(
        1_000,
        "What a step of priority is worth, if shared: a message goes before what is due up to "
        "this much earlier for each step that its priority is the lower number.",
        "nothing",
    )
    order: str = rule.word(
        ANY_ORDER,
        (ANY_ORDER, KEY_ORDER, TOPIC_ORDER),
        "If shared: one message of a key, or of the topic, is out at a time, the next when it "
        "is done. any: no such order.",
    )
    on_retry: str = rule.word(
        HOLD,
        (HOLD, SKIP),
        "Whether a message that waits for another attempt holds up those behind it in that "
        "order, or is skipped.",
    )
    # Attempts are counted in 15 bits.
    max_deliveries: int = rule.number(
        0,
        30_000,
        "A message that has failed so often goes to the dead-letter topic.",
        "tried without end",
    )
    dead_letter_topic: str = rule.topic("", "Where dead letters go.", "TOPIC-SUBSCRIPTION-DLQ")
    expired_to_dead_letter: bool = rule.flag(
        "Whether messages that expire go to the dead-letter topic."
    )
    dropped_to_dead_letter: bool = rule.flag(
        "Whether messages that a backlog quota drops go to the dead-letter topic."
    )
    paused_until_ms: int = rule.moment(
        "Until then nothing is handed out; forever: until it is resumed."
    )
    max_rate: float = rule.rate("Messages a second that are handed out.")
    max_in_flight: int = rule.number(
        0, 4_000_000, "Messages in the hands of all consumers together.", "the broker's bound"
    )
    dispatch: str = rule.word(
        "round_robin",
        ("round_robin", "least_busy"),
        "Who gets the next messages of a shared subscription: consumers in turn, or who holds "
        "the fewest.",
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
                f"max_backoff_ms of {duration_text(self.max_backoff_ms)}, which bounds every wait"
            )
