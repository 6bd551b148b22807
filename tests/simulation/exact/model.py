"""A naive model of the broker: plain sets and lists of what each subscription must get.

The model reads stored messages from the log by offset, so it need not guess the outcome of a
publish whose answer was lost. Every stored message must have been sent, and must not be stored
more often than it was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import escapement

NEVER_MS = 1 << 62
DEDUP_WINDOW_MS = 600_000
ACK_WAIT_MS = 20_000
# The kinds of the subscriptions, by name.
KINDS = {
    "a": "shared", "b": "shared", "c": "shared", "d": "failover", "e": "exclusive", "f": "failover",
}  # fmt: skip
# Subscriptions with a bound of deliveries, and so with dead letters.
WITH_DEAD_LETTERS = ("c", "d")
# The subscription without an ack wait: its messages never time out.
NO_ACK_WAIT = "e"
# The size of a message without its key and overhead.
MESSAGE_BYTES = 400
# The time after which a group commit has recorded a delivery, if the database works.
RECORDED_MS = 50
# The time after which a broker notices the end of an outage; it probes every 2 s.
PROBE_MS = 3_000
# The longest tick that a workload sets, plus the latency of a wake-up.
LATE_MS = 11_000


@dataclass
class Sent:
    """A message that a client sent: from ``least`` to ``most`` copies of it must be stored."""

    delay_ms: int = 0
    at_ms: int = 0
    key: str | None = None
    priority: int = 50
    dedup: str | None = None
    producer: str = ""  # the producer whose publish rate counts it; "": none
    least: int = 0
    most: int = 1
    copies: int = 0


@dataclass
class Stored:
    """A message of the log, with its present due time."""

    value: bytes
    due_ms: int
    published_ms: int
    key: str | None
    priority: int
    first_ms: int  # the earliest of its due times
    since_ms: int  # the time of the publish or reschedule that set its due time


@dataclass
class Delivery:
    """A delivery in flight, or a message in retry, until ``until_ms`` at least."""

    inbox: int
    until_ms: int
    slot: int | None
    attempt: int
    since_ms: int


@dataclass
class Expectation:
    """The messages that one subscription must get, and the state of each.

    Sets and keys are offsets.
    """

    since_offset: int
    since_ms: int  # messages of earlier offsets count if they are due from this time on
    kind: str
    cancelled: set[int]  # for this subscription, before their delivery
    acked: dict[int, int] = field(default_factory=dict)  # confirmed: the moment of the receipt
    # The number of crashes before the last delivery.
    delivered: dict[int, int] = field(default_factory=dict)
    # Messages due by this time may have been delivered to a consumer that left without receiving.
    left_ms: int = -1
    # The due time that a message keeps: before its reschedule it was delivered, or a broker that
    # crashed may have delivered it.
    kept_due_ms: dict[int, int] = field(default_factory=dict)
    # The due time that a message may keep if a reschedule was repeated. The first request may have
    # moved it, and the message may have been delivered at its new time.
    maybe_kept_due_ms: dict[int, int] = field(default_factory=dict)
    # Done before the subscription began; it may or may not get them.
    optional: set[int] = field(default_factory=set)
    # Deleted from the log before the subscription began.
    deleted: set[int] = field(default_factory=set)
    # Perhaps expired, or acknowledged without a receipt.
    maybe_done: set[int] = field(default_factory=set)
    # Dead-letter topic and offset in it -> original offset.
    dead_lettered: dict[tuple[str, int], int] = field(default_factory=dict)
    # Topics that may have its dead letters.
    dead_letter_topics: set[str] = field(default_factory=set)
    in_flight: dict[int, Delivery] = field(default_factory=dict)
    retries: dict[int, Delivery] = field(default_factory=dict)  # returned messages, in retry
    # The attempts of messages that were in flight at a crash, and whose delivery was recorded.
    recorded_attempts: dict[int, int] = field(default_factory=dict)
    # Messages that were in flight at a crash, recorded or not.
    in_flight_at_crash: set[int] = field(default_factory=set)
    # Times of deliveries since the rate was set.
    deliveries_ms: list[int] = field(default_factory=list)
    ordered_from: int = 0  # earlier offsets may come in any order
    # Messages that certainly were in the ready queue between two steps, with their due times.
    ready: dict[int, int] = field(default_factory=dict)
    # The ready queue may have been full, and has not been empty since.
    ready_may_be_full: bool = True
    # In log order only: messages returned without a delay, to be redelivered before all others.
    returned: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)  # by a quota
    # Undelivered messages that were pending between two steps.
    at_rest: set[int] = field(default_factory=set)
    changes: int = 0  # the number of changes at that time, to notice later ones
    # In log order: the moment of an arrival, the messages that should perhaps have come before it,
    # those of them that had been delivered before, and the offset of the arrival.
    passed_in_log: list[tuple[int, set[int], set[int], int]] = field(default_factory=list)
    # The offset of an arrival, and the messages of its key that should perhaps have come before it,
    # with their due times.
    passed_of_key: list[tuple[int, dict[int, int]]] = field(default_factory=list)
    # Delivered before the present order was set.
    delivered_before_order: set[int] = field(default_factory=set)

    @property
    def in_log_order(self) -> bool:
        return self.kind != "shared"

    def is_known_delivered(self, offset: int) -> bool:
        """Return whether the broker knows that a pending message was delivered."""
        return any(
            offset in known for known in (self.in_flight, self.retries, self.recorded_attempts)
        )

    def must_get(self, offset: int, due_ms: int) -> bool:
        """Return whether the subscription must get a message that is due then."""
        if offset in self.cancelled:
            return False
        return offset >= self.since_offset or due_ms >= self.since_ms

    def acknowledge(self, offsets: list[int], moment: int) -> None:
        """Note the receipt of acknowledgements."""
        for offset in offsets:
            self.acked.setdefault(offset, moment)
            self.in_flight.pop(offset, None)
            self.retries.pop(offset, None)

    def given_up(self) -> set[int]:
        """Return the messages that were dropped or dead-lettered."""
        return self.dropped.union(self.dead_lettered.values())

    def done(self) -> set[int]:
        """Return the messages that are acknowledged, dropped or dead-lettered."""
        return self.acked.keys() | self.given_up()

    def crash(self, now_ms: int) -> None:
        """Note the deliveries that were in flight at a crash."""
        self.in_flight_at_crash |= self.in_flight.keys()
        for offset, delivery in self.in_flight.items():
            if delivery.since_ms + RECORDED_MS <= now_ms:
                self.recorded_attempts[offset] = delivery.attempt

    def end_deliveries(self, inbox: int | None = None) -> None:
        """End the deliveries of a consumer, or of all consumers with their broker."""
        kept = {} if inbox is None else self.in_flight
        if self.in_log_order:
            self.returned |= {o for o in self.in_flight if o not in kept or kept[o].inbox == inbox}
        self.in_flight = {o: delivery for o, delivery in kept.items() if delivery.inbox != inbox}
        if inbox is None:
            self.returned = set()  # some may have been returned with a delay
            self.retries = {}
            self.deliveries_ms = []
            self.ready = {}


class Quota(NamedTuple):
    """A bound of the backlog in messages."""

    least: int = 0  # dropping leaves at least this number of messages; 0: no quota
    full: int = 0  # publishing is refused from this number on
    counts_all: bool = False  # delayed messages count, too
    drops: bool = False


NO_QUOTA = Quota()
Quotas = tuple[Quota | None, Quota | None]


class Model:
    """The messages, subscriptions and policies of a workload."""

    def __init__(self) -> None:
        self.sent: dict[bytes, Sent] = {}
        self.stored: list[Stored | None] = []  # None: deleted before the model read it
        self.keys: dict[str, tuple[int, int]] = {}  # dedup key -> offset, when published
        self.cancelled: set[int] = set()
        self.begin = 0  # the beginning of the log; it relocated pending messages from before
        self.expectations: dict[str, Expectation] = {}
        self.policies: dict[str, Mapping[str, Any] | None] = {}  # "": of the topic; None: unknown
        self.total: Quota | None = NO_QUOTA  # of the namespace; None: unknown
        self.quotas: Quotas = (NO_QUOTA, NO_QUOTA)  # quotas that drop, at the last step
        self.quiet_since_ms = 0  # the time of the last step
        self.reschedules = 0  # the number of reschedules
        self.high_ms = 0  # the latest time ever
        self.steady_from = 0  # since this offset the clock was not set
        self.doubtful_ms = -1  # messages due by then may be marked redelivered
        self.crashes: list[int] = []  # their times
        self.started_ms = -1  # the latest time of a broker start
        self.rated_from = 0  # the first offset since the rate was set or a broker started

    @property
    def end(self) -> int:
        return len(self.stored)

    def policy(self, name: str, field: str, default: Any = 0) -> Any:
        """Return a field of the policy of a subscription, or of the topic (no name)."""
        return (self.policies.get(name) or {}).get(field) or default

    def quota(self) -> Quota | None:
        """Return the quota of the topic, or None if it is unknown."""
        policy = self.policies[""]
        if policy is None:
            return None
        messages, size_bytes = policy.get("quota_messages"), policy.get("quota_bytes")
        if not messages and not size_bytes:
            return NO_QUOTA
        counts_all = policy["quota_counts"] == "all"
        drops = policy["quota_action"] == "drop_oldest"
        if messages:
            return Quota(messages, messages, counts_all, drops)
        # All messages have about the same size, so bytes give a number of messages.
        least = size_bytes // MESSAGE_BYTES
        return Quota(least, least + 1, counts_all, drops)

    def quotas_now(self) -> Quotas:
        """Return the quotas of topic and namespace that drop the oldest messages."""
        topic, total = (
            NO_QUOTA if quota is not None and not quota.drops else quota
            for quota in (self.quota(), self.total)
        )
        return topic, total

    # -- the log ---------------------------------------------------------------------

    def store(self, entry: escapement.client.administration.reading.Entry) -> None:
        """Check a message of the log and enter it in the model."""
        while self.end < entry.offset:
            assert self.end < self.begin, f"{self.end} is missing in the log"
            self.stored.append(None)
        value, published_ms = entry.value, entry.published_ms
        sent = self.sent[value]
        sent.copies += 1
        assert sent.copies <= sent.most, f"{value!r} is stored {sent.copies} times"
        again = sent.copies > 1
        due_ms = published_ms if again else max(sent.at_ms, published_ms + sent.delay_ms)
        assert entry.due_ms == due_ms, f"{value!r} has a wrong due time"
        assert (entry.key, entry.priority) == (sent.key, sent.priority)
        if sent.dedup is not None and not again:
            first = self.keys.get(sent.dedup)
            assert first is None or first[1] + DEDUP_WINDOW_MS <= self.high_ms, "stored twice"
            self.keys[sent.dedup] = (self.end, published_ms)
        if sent.producer and not again:
            self.check_rate(published_ms, "max_publish_rate", None)
            self.check_rate(published_ms, "max_publish_rate_per_producer", sent.producer)
        self.stored.append(
            Stored(value, due_ms, published_ms, sent.key, sent.priority, due_ms, published_ms)
        )

    def check_rate(self, published_ms: int, field: str, producer: str | None) -> None:
        """Check the publish rate of a producer, or of all, over every span that ends now."""
        rate = self.policy("", field)
        if not rate or self.policies.get("") is None:
            return
        rated = self.stored[self.rated_from :]
        before = [m.published_ms for m in rated if self._is_metered(m, producer)]
        before = [at_ms for at_ms in before if at_ms < published_ms]
        for row, at_ms in enumerate(before):
            span_s = (published_ms - at_ms) / 1000
            assert len(before) - row <= rate * (span_s + 0.1) + 2, "published over the rate"

    def _is_metered(self, message: Stored | None, producer: str | None) -> bool:
        sent = None if message is None else self.sent.get(message.value)
        if sent is None or not sent.producer or sent.copies > 1:
            return False
        return producer is None or sent.producer == producer

    # -- subscriptions ---------------------------------------------------------------

    def expectation(
        self, since_offset: int, since_ms: int, now_ms: int, kind: str, log_begin: int
    ) -> Expectation:
        """Return the expectation of a new subscription.

        Messages that fell due before the clock was set back may be done. Messages from before
        the beginning of the log may be done, too. Pending messages from there were relocated;
        subscriptions in log order do not get them.
        """
        expectation = Expectation(
            since_offset, since_ms, kind, set(self.cancelled), ordered_from=self.end
        )
        if expectation.in_log_order:
            expectation.since_ms = NEVER_MS
            expectation.optional = set(range(log_begin))
            return expectation
        expectation.optional = {
            offset
            for offset, message in enumerate(self.stored)
            if message is not None
            and message.due_ms <= self.high_ms
            and (offset < log_begin or self.high_ms > now_ms)
        }
        return expectation

    def due_ms(self, expectation: Expectation, offset: int) -> int:
        """Return the due time of a message for a subscription."""
        message = self.stored[offset]
        assert message is not None
        return (
            message.due_ms
            if expectation.in_log_order
            else expectation.kept_due_ms.get(offset, message.due_ms)
        )

    def known_ms(self, expectation: Expectation, offset: int) -> int:
        """Return the earliest time at which a consumer may have had a message.

        Subscriptions in log order may have had it with any later message.
        """
        message = self.stored[offset]
        assert message is not None
        if not expectation.in_log_order:
            return message.first_ms
        return min(one.published_ms for one in self.stored[offset:] if one is not None)

    def wanted(self, expectation: Expectation) -> set[int]:
        """Return the messages that a subscription must get, done or not."""
        return {
            offset
            for offset, message in enumerate(self.stored)
            if message is not None
            and expectation.must_get(offset, self.due_ms(expectation, offset))
        }

    def open(self, expectation: Expectation) -> set[int]:
        """Return the messages that a subscription certainly still must get."""
        return (
            self.wanted(expectation)
            - expectation.done()
            - expectation.maybe_done
            - expectation.optional
        )

    def pass_time(self, now_ms: int) -> None:
        """Note the time. With a time-to-live, expired messages may be done."""
        self.high_ms = max(self.high_ms, now_ms)
        ttl_ms = self.policy("", "ttl_ms")
        for expectation in self.expectations.values() if ttl_ms else ():
            for offset in self.wanted(expectation) - expectation.maybe_done:
                if self.due_ms(expectation, offset) + ttl_ms <= self.high_ms:
                    expectation.maybe_done.add(offset)
            for offset, wait in expectation.retries.items():
                # No retry outlasts the time-to-live, even if that is raised later.
                wait.until_ms = min(wait.until_ms, self.due_ms(expectation, offset) + ttl_ms)

    def end_crash(self, now_ms: int) -> None:
        """Note deliveries in flight at a crash, once all earlier arrivals are in the model."""
        for expectation in self.expectations.values():
            expectation.crash(now_ms)

    def crash(self, now_ms: int) -> None:
        """Note a crash at once.

        A lease lasts longer than the workload. So if the clock is now before the start of an
        owner, any message may have been delivered.
        """
        self.crashes.append(now_ms)
        for expectation in self.expectations.values():
            expectation.in_flight_at_crash |= expectation.in_flight.keys()
        until_ms = NEVER_MS if now_ms < self.started_ms else now_ms
        self.doubtful_ms = max(self.doubtful_ms, until_ms)

    def is_forgotten(self, offset: int) -> bool:
        """Return whether the log may have deleted a message."""
        return offset < self.begin and all(
            offset in expectation.done() | expectation.optional | expectation.maybe_done
            or self.stored[offset] is None
            or not expectation.must_get(offset, self.due_ms(expectation, offset))
            or self.policy(name, "max_deliveries")  # it may be dead-lettered
            for name, expectation in self.expectations.items()
        )

    def backlog(self, until_ms: int, counts_all: bool) -> int:
        """Return the certain backlog of the slowest subscription.

        It is the number of messages that count since ``until_ms`` or before.
        """
        ahead = len(self.ahead(until_ms)) if counts_all else 0
        counts = [ahead]
        for name, expectation in self.expectations.items():
            if not self.policy(name, "max_deliveries"):
                counted = [
                    o
                    for o in self.open(expectation)
                    if self.counts_since_ms(expectation, o) <= until_ms
                ]
                # In log order, delayed messages are pending, too.
                counts.append(len(counted) + (0 if expectation.in_log_order else ahead))
        return max(counts)

    def ahead(self, known_ms: int, lately_ms: int = 0) -> set[int]:
        """Return the messages that are delayed, or were ``lately_ms`` ago.

        Their due times were set by ``known_ms``.
        """
        return {
            offset
            for offset, message in enumerate(self.stored)
            if message is not None
            and message.since_ms <= known_ms
            and message.due_ms > self.high_ms - lately_ms
            and offset not in self.cancelled
        }

    def counts_since_ms(self, expectation: Expectation, offset: int) -> int:
        """Return since when a quota counts a message: its due time, or in log order its publish."""
        message = self.stored[offset]
        assert message is not None
        if expectation.in_log_order:
            return message.published_ms
        return max(self.due_ms(expectation, offset), message.since_ms)

    def end_deliveries(self) -> None:
        """End all deliveries."""
        for expectation in self.expectations.values():
            expectation.end_deliveries()

    def check_end(self) -> None:
        """Check that every confirmed message is stored."""
        for value, sent in self.sent.items():
            if None not in self.stored:
                assert sent.least <= sent.copies, f"{value!r} is not in the log"
