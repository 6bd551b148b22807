"""What a broker has been told, and what each subscription must get: plain sets and lists.

The model reads what is stored from the log by offset, so that it need not guess what became
of a publish whose answer was lost: everything there must have been sent by somebody, and not
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
# The subscriptions there may be.
KINDS = {
    "a": "shared", "b": "shared", "c": "shared", "d": "failover", "e": "exclusive", "f": "failover",
}  # fmt: skip
# Those whose messages are tried a bounded number of times.
MORTALS = ("c", "d")
# The one whose messages may go unacknowledged without end.
WITHOUT_END = "e"
SCHEDULE_MS = 900_000
# What a message weighs, some more for its key and what else is kept with it.
MESSAGE_BYTES = 400
# So long after a hand-over a group commit has it on record, if the database is well.
RECORDED_MS = 50
# So long after an outage a broker knows that it is over: probes come every 2 s.
PROBE_MS = 3_000
# The longest tick that a life sets, and what a wake may add to it.
LATE_MS = 11_000


@dataclass
class Sent:
    """What somebody wanted stored: so many copies of a value, no fewer and no more."""

    delay_ms: int = 0
    at_ms: int = 0
    key: str | None = None
    priority: int = 50
    dedup: str | None = None
    group: str | None = None
    producer: str = ""  # whose rate, and the topic's, it counts for; "": for none
    least: int = 0
    most: int = 1
    copies: int = 0


@dataclass
class Completion:
    """A group is closed for a subscription, and a number is published when that is done."""

    subscription: str
    number: int
    has_fired: bool = False
    done_ms: int | None = None  # since when it is owed, as far as is known
    steps: int = 0  # of the life, since then


@dataclass
class Group:
    """Messages that belong together."""

    members: set[int] = field(default_factory=set)
    completions: list[Completion] = field(default_factory=list)


@dataclass
class Stored:
    """A message of the log."""

    value: bytes
    due_ms: int
    published_ms: int
    key: str | None
    priority: int
    first_ms: int  # the first of its times
    since_ms: int  # when it was given the one it has


@dataclass
class Hand:
    """A message that a consumer has, until then at least."""

    inbox: int
    until_ms: int
    slot: int | None
    attempt: int
    since_ms: int


@dataclass
class Expectation:
    """What one subscription must get, and what it has told the broker."""

    since_offset: int
    since_ms: int  # of earlier offsets, what is due from here on
    kind: str
    spared: set[int]  # cancelled before it was handed them
    acked: dict[int, int] = field(default_factory=dict)  # with a receipt, and when that came
    seen: dict[int, int] = field(default_factory=dict)  # offset -> the last crash before it
    left_ms: int = -1  # what was due by then may have been sent to nobody who looked
    # Of what was handed to it and then moved for others: the time it keeps.
    kept: dict[int, int] = field(default_factory=dict)
    # A crash may have lost the record of its hand-over, and it was moved: the time it may keep.
    doubted: dict[int, int] = field(default_factory=dict)
    lucky: set[int] = field(default_factory=set)  # over before it began; a few may be left
    gone: set[int] = field(default_factory=set)  # of the past, and forgotten when it began
    perhaps: set[int] = field(default_factory=set)  # expired, or acknowledged without a receipt
    # Dead-letter topic and place in it -> what lies there.
    dead_lettered: dict[tuple[str, int], int] = field(default_factory=dict)
    graves: set[str] = field(default_factory=set)  # the topics where its dead letters may lie
    hands: dict[int, Hand] = field(default_factory=dict)
    waits: dict[int, Hand] = field(default_factory=dict)  # given back, not to come before then
    # What was in hands when a broker died, and long enough for that to be on record: the attempt.
    fired: dict[int, int] = field(default_factory=dict)
    # What was in hands when a broker died, on record or not.
    crashed_with: set[int] = field(default_factory=set)
    passed_ms: list[int] = field(default_factory=list)  # deliveries since the rate was set
    ordered_from: int = 0  # what lies before in the log may come in any order
    heads: dict[int, int] = field(default_factory=dict)  # lay ready between two steps: when due
    crowded: bool = True  # so much was due, and has been since, that ready may have been full
    # Of one in the order of the log: given back at once, and to be read again before all others.
    back: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)  # by a quota
    at_rest: set[int] = field(default_factory=set)  # between two steps, and nobody ever had it
    settled: int = 0  # how much was done then
    # When something came, what should perhaps have come before it, of that what had come, and what.
    passed: list[tuple[int, set[int], set[int], int]] = field(default_factory=list)
    # What came, and what of its key should perhaps have come before it, with when that is due.
    outrun: list[tuple[int, dict[int, int]]] = field(default_factory=list)
    unplaced: set[int] = field(default_factory=set)  # handed out before the present order began

    @property
    def in_log_order(self) -> bool:
        return self.kind != "shared"

    def holds(self, offset: int) -> bool:
        """Whether the broker knows that this was handed out and is still to be done."""
        return any(offset in known for known in (self.hands, self.waits, self.fired))

    def covers(self, offset: int, due_ms: int) -> bool:
        if offset in self.spared:
            return False
        return offset >= self.since_offset or due_ms >= self.since_ms

    def acknowledge(self, offsets: list[int], moment: int) -> None:
        """A receipt has come for these."""
        for offset in offsets:
            self.acked.setdefault(offset, moment)
            self.hands.pop(offset, None)
            self.waits.pop(offset, None)

    def over(self) -> set[int]:
        """What it gave up."""
        return self.dropped.union(self.dead_lettered.values())

    def done(self) -> set[int]:
        return self.acked.keys() | self.over()

    def die(self, now_ms: int) -> None:
        """The broker dies."""
        self.crashed_with |= self.hands.keys()
        for offset, hand in self.hands.items():
            if hand.since_ms + RECORDED_MS <= now_ms:
                self.fired[offset] = hand.attempt

    def let_go(self, inbox: int | None = None) -> None:
        """A consumer is gone, or all are, and the broker with them."""
        kept = {} if inbox is None else self.hands
        if self.in_log_order:
            self.back |= {o for o in self.hands if o not in kept or kept[o].inbox == inbox}
        self.hands = {o: hand for o, hand in kept.items() if hand.inbox != inbox}
        if inbox is None:
            self.back = set()  # perhaps some had been given back, to wait
            self.waits = {}
            self.passed_ms = []
            self.heads = {}


class Quota(NamedTuple):
    """How many messages may be left before the oldest go, or nothing is taken."""

    least: int = 0  # no fewer are left; 0: no quota
    full: int = 0  # with so many nothing is taken
    counts_all: bool = False  # what is not yet due is among them
    drops: bool = False


NO_QUOTA = Quota()
Quotas = tuple[Quota | None, Quota | None]


class Model:
    """All that is to be known."""

    def __init__(self) -> None:
        self.sent: dict[bytes, Sent] = {}
        self.stored: list[Stored | None] = []  # None: forgotten before anybody looked
        self.keys: dict[str, tuple[int, int]] = {}  # dedup key -> offset, when published
        self.cancelled: set[int] = set()
        self.begin = 0  # of what lies before in the log, what was done is forgotten
        self.expectations: dict[str, Expectation] = {}
        self.policies: dict[str, Mapping[str, Any] | None] = {}  # "": the topic's; None: unsure
        self.groups: dict[str, Group] = {}
        self.forgotten: list[Completion] = []  # of groups that were deleted
        self.fired: list[int] = []
        self.follow_ups = 0
        self.total: Quota | None = NO_QUOTA  # of all topics together; None: unsure
        self.quotas: Quotas = (NO_QUOTA, NO_QUOTA)  # those that drop, between two steps
        self.quiet_since_ms = 0
        self.moves = 0  # messages that were given another time
        self.occurrences: set[int] = set()
        self.schedule_ms: int | None = None  # since when something recurs
        self.schedule_high_ms = 0  # the latest that it was since then
        self.high_ms = 0  # the latest that it ever was
        self.steady_from = 0  # from this offset on the clock was not set
        self.doubtful_ms = -1  # what was due by then may be marked redelivered
        self.crashes: list[int] = []  # when
        self.started_ms = -1  # the latest that it was at any start
        self.rated_from = 0  # publishes since the topic's rate was set, or a start

    @property
    def end(self) -> int:
        return len(self.stored)

    def policy(self, name: str, field: str, default: Any = 0) -> Any:
        return (self.policies.get(name) or {}).get(field) or default

    def quota(self) -> Quota | None:
        """That of the topic; None: unsure."""
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
        # All messages weigh about the same, so that their mean says how many there are.
        least = size_bytes // MESSAGE_BYTES
        return Quota(least, least + 1, counts_all, drops)

    def quotas_now(self) -> Quotas:
        """Of the topic and of all together, where the oldest go."""
        topic, total = (
            NO_QUOTA if quota is not None and not quota.drops else quota
            for quota in (self.quota(), self.total)
        )
        return topic, total

    # -- the log ---------------------------------------------------------------------

    def store(self, entry: escapement.client.administration.reading.Entry) -> None:
        """A message is in the log."""
        while self.end < entry.offset:
            assert self.end < self.begin, f"{self.end} is missing in the log"
            self.stored.append(None)
        value, published_ms = entry.value, entry.published_ms
        if "schedule" in entry.properties:
            occurrence_ms = entry.properties["occurrence_ms"]
            assert occurrence_ms not in self.occurrences, f"{occurrence_ms} was published twice"
            assert self.schedule_ms is not None
            assert (occurrence_ms - self.schedule_ms) % SCHEDULE_MS == 0
            assert occurrence_ms <= self.high_ms, "it is early"
            self.occurrences.add(occurrence_ms)
            sent = Sent()
        else:
            sent = self.sent[value]
            sent.copies += 1
            assert sent.copies <= sent.most, f"{value!r} is stored {sent.copies} times"
        again = sent.copies > 1
        assert entry.group == (None if again else sent.group)
        if entry.group is not None:
            self.groups.setdefault(entry.group, Group()).members.add(self.end)
        due_ms = published_ms if again else max(sent.at_ms, published_ms + sent.delay_ms)
        assert entry.due_ms == due_ms, f"{value!r} has another time"
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

    def next_follow_up(self) -> int:
        """The number of a closing that there was not yet."""
        self.follow_ups += 1
        return self.follow_ups

    def check_rate(self, published_ms: int, field: str, producer: str | None) -> None:
        """What was published before, by one or by all, over any span, has been paid for."""
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
        """A new one. What came due under a clock that was set back since may be over.

        And what lies before the beginning of the log: what of it was still to be done was
        relocated, which those in the order of the log do not see.
        """
        expectation = Expectation(
            since_offset, since_ms, kind, set(self.cancelled), ordered_from=self.end
        )
        if expectation.in_log_order:
            expectation.since_ms = NEVER_MS
            expectation.lucky = set(range(log_begin))
            return expectation
        expectation.lucky = {
            offset
            for offset, message in enumerate(self.stored)
            if message is not None
            and message.due_ms <= self.high_ms
            and (offset < log_begin or self.high_ms > now_ms)
        }
        return expectation

    def due_ms(self, expectation: Expectation, offset: int) -> int:
        message = self.stored[offset]
        assert message is not None
        return (
            message.due_ms
            if expectation.in_log_order
            else expectation.kept.get(offset, message.due_ms)
        )

    def known_ms(self, expectation: Expectation, offset: int) -> int:
        """Since when somebody may have had it. In the log, also with what came after it."""
        message = self.stored[offset]
        assert message is not None
        if not expectation.in_log_order:
            return message.first_ms
        return min(one.published_ms for one in self.stored[offset:] if one is not None)

    def is_on_record(self, expectation: Expectation, offset: int) -> bool:
        """Whether the broker knows that a message was handed out, if it says that it was."""
        message = self.stored[offset]
        assert message is not None
        is_doubtful = message.due_ms <= self.doubtful_ms
        is_recent = expectation.seen.get(offset) == len(self.crashes)
        return is_recent or not is_doubtful or expectation.holds(offset)

    def wanted(self, expectation: Expectation) -> set[int]:
        """What it is to get at some time or other."""
        return {
            offset
            for offset, message in enumerate(self.stored)
            if message is not None and expectation.covers(offset, self.due_ms(expectation, offset))
        }

    def open(self, expectation: Expectation) -> set[int]:
        """What it is certainly still to get."""
        return (
            self.wanted(expectation) - expectation.done() - expectation.perhaps - expectation.lucky
        )

    def pass_time(self, now_ms: int) -> None:
        """It is so late; with a time to live, what has expired may be done."""
        self.high_ms = max(self.high_ms, now_ms)
        self.schedule_high_ms = max(self.schedule_high_ms, now_ms)
        ttl_ms = self.policy("", "ttl_ms")
        for expectation in self.expectations.values() if ttl_ms else ():
            for offset in self.wanted(expectation) - expectation.perhaps:
                if self.due_ms(expectation, offset) + ttl_ms <= self.high_ms:
                    expectation.perhaps.add(offset)
            for offset, wait in expectation.waits.items():
                # Longer than it lives a message does not wait, even if it may live longer later.
                wait.until_ms = min(wait.until_ms, self.due_ms(expectation, offset) + ttl_ms)

    def die(self, now_ms: int) -> None:
        """The same, once all that came before is known."""
        for expectation in self.expectations.values():
            expectation.die(now_ms)

    def crash(self, now_ms: int) -> None:
        """A broker died. A lease is longer here than any life, so if an owner was seen later
        than it is now, all may have been delivered.
        """
        self.crashes.append(now_ms)
        for expectation in self.expectations.values():
            expectation.crashed_with |= expectation.hands.keys()
        until_ms = NEVER_MS if now_ms < self.started_ms else now_ms
        self.doubtful_ms = max(self.doubtful_ms, until_ms)

    def is_forgotten(self, offset: int) -> bool:
        """Whether the log need not have it any more."""
        return offset < self.begin and all(
            offset in expectation.done() | expectation.lucky | expectation.perhaps
            or self.stored[offset] is None
            or not expectation.covers(offset, self.due_ms(expectation, offset))
            or self.policy(name, "max_deliveries")  # what is buried is done
            for name, expectation in self.expectations.items()
        )

    def backlog(self, until_ms: int, counts_all: bool) -> int:
        """What certainly waited by then and is still to be done, of the furthest behind."""
        ahead = len(self.ahead(until_ms)) if counts_all else 0
        counts = [ahead]
        for name, expectation in self.expectations.items():
            if not self.policy(name, "max_deliveries"):
                waits = [
                    o
                    for o in self.open(expectation)
                    if self.waits_since_ms(expectation, o) <= until_ms
                ]
                # In the order of the log what is not yet due waits, too.
                counts.append(len(waits) + (0 if expectation.in_log_order else ahead))
        return max(counts)

    def ahead(self, known_ms: int, lately_ms: int = 0) -> set[int]:
        """What there was by then that is not yet due, or was not lately."""
        return {
            offset
            for offset, message in enumerate(self.stored)
            if message is not None
            and message.since_ms <= known_ms
            and message.due_ms > self.high_ms - lately_ms
            and offset not in self.cancelled
        }

    def waits_since_ms(self, expectation: Expectation, offset: int) -> int:
        """Since when it counts: it is due, or, where times mean nothing, it is there."""
        message = self.stored[offset]
        assert message is not None
        if expectation.in_log_order:
            return message.published_ms
        return max(self.due_ms(expectation, offset), message.since_ms)

    def let_go(self) -> None:
        """No consumer has anything any more."""
        for expectation in self.expectations.values():
            expectation.let_go()

    def check_end(self) -> None:
        """Everything that was confirmed is stored, as often as it should be."""
        for value, sent in self.sent.items():
            if None not in self.stored:
                assert sent.least <= sent.copies, f"{value!r} is not in the log"

    def check_schedule(self) -> None:
        """What recurs was published each time, and no more."""
        if self.schedule_ms is None or None in self.stored:
            return
        count = (self.schedule_high_ms - self.schedule_ms) // SCHEDULE_MS
        expected = {self.schedule_ms + SCHEDULE_MS * (n + 1) for n in range(count)}
        missed, early = expected - self.occurrences, self.occurrences - expected
        assert not missed, f"not published: {sorted(missed)}"
        assert not early, f"published too early: {sorted(early)}"
