"""First deliveries come in the order that their subscription keeps."""

from __future__ import annotations

from collections.abc import Iterator

from histories.history import Arrival, History, Message, in_order


def key_order(history: History) -> Iterator[str]:
    """Find first deliveries that came after one of their key that was due later.

    The broker can only order durable messages. So a message may come late if it was confirmed, or
    its due time changed, after the other one was delivered.
    """
    for arrivals in _firsts(history, "key"):
        latest: dict[str, Arrival] = {}
        for arrival in arrivals:
            last = latest.setdefault(arrival.key, arrival)
            if (arrival.due_ms, arrival.offset) >= (last.due_ms, last.offset):
                latest[arrival.key] = arrival
                continue
            message = history.messages[arrival.number]
            settled_s = _settled_s(history, message)
            is_first_copy = arrival.offset == history.first_copy(message)
            if is_first_copy and settled_s + history.sending_s < last.sent_s:
                yield (
                    f"order: {arrival} of key {arrival.key} came after {last}, which was due"
                    f" {last.due_ms - arrival.due_ms} ms later"
                )


def _settled_s(history: History, message: Message) -> float:
    """Return when the due time of a message was last confirmed, or may have changed."""
    times_ms = [message.confirmed_ms]
    times_ms += [one.answered_ms for one in message.amendments if one.due_ms is not None]
    return history.seconds(max(times_ms))


def log_order(history: History) -> Iterator[str]:
    """Find first deliveries that are not in the order of the log."""
    for arrivals in _firsts(history, "log"):
        last = arrivals[0] if arrivals else None
        for arrival in arrivals:
            assert last is not None
            if history.was_sought(arrival.subscription, last.sent_s, arrival.sent_s):
                last = arrival
            if arrival.offset < last.offset:
                yield f"order: {arrival} came after offset {last.offset}"
            last = max(last, arrival, key=lambda one: one.offset)


def _firsts(history: History, kind: str) -> Iterator[list[Arrival]]:
    """Yield the deliveries to each subscription of a kind that are marked as the first."""
    firsts: dict[str, list[Arrival]] = {
        name: [] for name, found in history.kinds.items() if found == kind
    }
    for arrival in in_order(history.arrivals):
        if arrival.subscription in firsts and not arrival.again:
            firsts[arrival.subscription].append(arrival)
    yield from firsts.values()
