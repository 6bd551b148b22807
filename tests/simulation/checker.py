"""The ten invariants (docs/architecture.md), checked on a recorded history.

Each function yields a line for each violation. It begins with the number of the invariant. The
checker knows nothing of brokers and storage. It allows only what clients cannot see: the answer to
a call may be lost, and bytes may be on their way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from escapement.errors import (
    LeaseLost,
    StorageError,
    StorageUnavailable,
)
from escapement.storage.engine.base import TransactionAborted
from simulation.history import NEVER_MS, Arrival, History, Message

# A broker sends a message within this time after it has decided to.
_SENDING_S = 2.0


class Checker:
    """A history, sorted by what the rules ask for."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._messages = history.messages
        self._by_offset: dict[tuple[str, int], list[Arrival]] = defaultdict(list)
        self._topic_of = {name: topic for topic, names in history.topics.items() for name in names}
        for arrival in sorted(history.arrivals, key=lambda one: one.sent.number):
            self._by_offset[arrival.subscription, arrival.offset].append(arrival)

    def violations(self, *, drained: bool) -> Iterator[str]:
        """Yield all violations of a history.

        Args:
          drained: whether every message should have been delivered and acknowledged.
        """
        if drained:
            yield from self._lost()
        yield from self._history.surprises
        yield from self._ended()
        yield from self._stored_once()
        yield from self._dead_letters()
        yield from self._early()
        yield from self._acknowledged()
        yield from self._in_flight_twice()
        yield from self._unmarked()
        yield from self._amended()
        yield from self._key_order()
        yield from self._log_order()
        for check in self._history.checks:
            yield from check.violations(self._history)

    # -- 8 and 7: brokers end only for the reasons that faults explain ----------------

    def _ended(self) -> Iterator[str]:
        for end in self._history.ends:
            if not self._is_explained(end.error):
                yield f"7, 8: {end.host} ended at {end.at_s:.3f} s: {end.error!r}"

    def _is_explained(self, error: BaseException) -> bool:
        if isinstance(error, LeaseLost | StorageUnavailable | TransactionAborted):
            return True
        full = self._history.disk_failed and "cannot be written" in str(error)
        return full and type(error) is StorageError

    # -- 1: confirmed is stored, and stored once ---------------------------------------

    def _stored_once(self) -> Iterator[str]:
        offsets: dict[int, set[int]] = defaultdict(set)
        numbers: dict[tuple[str, int], set[int]] = defaultdict(set)
        for message in self._messages:
            if message.offset >= 0:
                offsets[message.number].add(message.offset)
                numbers[message.topic, message.offset].add(message.number)
        for arrival in self._history.arrivals:
            offsets[arrival.number].add(arrival.offset)
            numbers[self._topic_of[arrival.subscription], arrival.offset].add(arrival.number)
        for number, found in offsets.items():
            if len(found) > 1 + self._history.redrives[number]:
                yield f"1: message {number} is stored at offsets {sorted(found)}"
            if self._messages[number].refused:
                yield f"1: message {number} was refused and is stored at {sorted(found)}"
        for (topic, offset), several in numbers.items():
            if len(several) > 1:
                yield f"1, 8: offset {offset} of {topic} has messages {sorted(several)}"

    # -- 1 and 4: everything is delivered, and acknowledged in the end -------------------

    def _lost(self) -> Iterator[str]:
        for line in self.unfinished():
            yield f"1, 4: {line}"

    def unfinished(self) -> Iterator[str]:
        """Yield messages that a subscription must still get and acknowledge."""
        delivered = {arrival.number: arrival.offset for arrival in self._history.arrivals}
        for message in self._messages:
            offset = message.offset if message.offset >= 0 else delivered.get(message.number, -1)
            if offset < 0:
                continue  # no client knows whether it is stored
            if self._may_have_expired(message):
                continue
            for name in self._history.topics[message.topic]:
                if name in self._history.seeks:
                    continue  # a seek may have passed it
                if (name, offset) in self._history.ack_sent:
                    continue
                if message.number in self._history.dead.get(name, ()):
                    continue
                if any(
                    one.due_ms is None and one.done is not False and name not in one.handed
                    for one in message.amendments
                ):
                    continue  # cancelled, or perhaps cancelled
                yield f"message {message.number} at offset {offset} was lost for {name}"
        for check in self._history.checks:
            yield from check.unfinished(self._history)

    def _may_have_expired(self, message: Message) -> bool:
        """Return whether faults may have kept a message until it expired."""
        expiry_ms = self._history.expiries_ms.get(message.topic, NEVER_MS)
        return message.earliest_ms + expiry_ms < self._history.healed_ms

    def _dead_letters(self) -> Iterator[str]:
        for name, found in self._history.dead.items():
            for number, count in found.items():
                if count > 1:
                    yield f"6: message {number} of {name} has {count} dead letters"

    # -- 2: never early ------------------------------------------------------------------

    def _early(self) -> Iterator[str]:
        for arrival in self._history.arrivals:
            if self._history.kinds[arrival.subscription] == "log":
                continue
            if arrival.sent.broker_ms < arrival.due_ms and not self._clock_was_set(arrival.sent_s):
                early_ms = arrival.due_ms - arrival.sent.broker_ms
                yield f"2: {_name(arrival)} came {early_ms} ms early"

    def _clock_was_set(self, at_s: float) -> bool:
        return any(0 <= at_s - step_s <= _SENDING_S for step_s in self._history.skew_steps_s)

    # -- 3: never after a confirmed acknowledgement ----------------------------------------

    def _acknowledged(self) -> Iterator[str]:
        for key, arrivals in self._by_offset.items():
            acked_s = self._history.acked_s.get(key)
            for arrival in arrivals:
                if acked_s is None or arrival.sent_s <= acked_s:
                    continue
                called_s = max(at_s for at_s in self._history.ack_sent[key] if at_s <= acked_s)
                if not self._history.was_sought(key[0], called_s, arrival.sent_s):
                    after_s = arrival.sent_s - acked_s
                    yield f"3: {_name(arrival)} was sent {after_s:.3f} s after its ack was durable"

    # -- 5: in flight once -------------------------------------------------------------------

    def _in_flight_twice(self) -> Iterator[str]:
        for arrivals in self._by_offset.values():
            for i, later in enumerate(arrivals):
                for earlier in arrivals[:i]:
                    if earlier.host == later.host and not self._over(earlier, later.sent_s):
                        yield f"5: {_name(later)} was sent while it was in flight elsewhere"

    def _over(self, arrival: Arrival, at_s: float) -> bool:
        """Return whether a delivery may have ended by then."""
        ends = [arrival.returned_s, arrival.consumer.left_s, arrival.cable.ended_s]
        if any(end_s is not None and end_s <= at_s for end_s in ends):
            return True
        if self._history.was_sought(arrival.subscription, arrival.sent_s, at_s):
            return True
        return at_s >= arrival.sent_s + self._history.ack_wait_s - _SENDING_S

    # -- 6: redelivered messages are marked --------------------------------------------------

    def _unmarked(self) -> Iterator[str]:
        for arrivals in self._by_offset.values():
            for earlier, arrival in pairwise(arrivals):
                name = arrival.subscription
                sought = self._history.was_sought(name, earlier.sent_s, arrival.sent_s)
                if not arrival.again and not sought:
                    yield f"6: {_name(arrival)} came again without a mark"

    # -- 10: amendments ------------------------------------------------------------------------

    def _amended(self) -> Iterator[str]:
        for (name, _), arrivals in self._by_offset.items():
            first = arrivals[0]
            message = self._messages[first.number]
            if any(
                one.due_ms is None and one.done and name not in one.handed
                for one in message.amendments
            ):
                yield f"10: {_name(first)} was delivered although it was cancelled"
            if self._history.kinds[name] != "log":
                earliest_ms = message.earliest_due_ms(name, message.amendments)
                if first.due_ms < earliest_ms:
                    yield (
                        f"10: {_name(first)} was due {earliest_ms - first.due_ms} ms before the"
                        " time that was asked for"
                    )

    # -- order ---------------------------------------------------------------------------------

    def _key_order(self) -> Iterator[str]:
        """Find first deliveries that came after one of their key that was due later."""
        for name in self._names("key"):
            latest: dict[str, Arrival] = {}
            for arrival in self._firsts(name):
                last = latest.setdefault(arrival.key, arrival)
                if (arrival.due_ms, arrival.offset) >= (last.due_ms, last.offset):
                    latest[arrival.key] = arrival
                elif self._settled_s(self._messages[arrival.number]) + _SENDING_S < last.sent_s:
                    yield f"order: {_name(arrival)} of key {arrival.key} came after {_name(last)}"

    def _settled_s(self, message: Message) -> float:
        """Return when the due time of a message was last confirmed, or may have changed."""
        times_ms = [message.confirmed_ms]
        times_ms += [one.answered_ms for one in message.amendments if one.due_ms is not None]
        latest_ms = max(times_ms)
        if latest_ms >= NEVER_MS:
            return float("inf")
        return (latest_ms - self._history.began_ms) / 1000

    def _log_order(self) -> Iterator[str]:
        """Find first deliveries that are not in the order of the log."""
        for name in self._names("log"):
            last: Arrival | None = None
            for arrival in self._firsts(name):
                if last is None or self._history.was_sought(name, last.sent_s, arrival.sent_s):
                    last = arrival
                if arrival.offset < last.offset:
                    yield f"order: {_name(arrival)} came after offset {last.offset}"
                last = max(last, arrival, key=lambda one: one.offset)

    def _names(self, kind: str) -> list[str]:
        return [name for name, found in self._history.kinds.items() if found == kind]

    def _firsts(self, name: str) -> Iterator[Arrival]:
        for arrival in sorted(self._history.arrivals, key=lambda one: one.sent.number):
            if arrival.subscription == name and not arrival.again:
                yield arrival


def _name(arrival: Arrival) -> str:
    return f"offset {arrival.offset} (message {arrival.number}) of {arrival.subscription}"
