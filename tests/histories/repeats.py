"""Only messages in flight are repeated, and they are marked (invariants 3, 5 and 6)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from histories.history import Arrival, History, in_order


def acknowledged(history: History) -> Iterator[str]:
    """Find deliveries after an acknowledgement that was confirmed as durable."""
    for key, acked_s in history.acked_s.items():
        for arrival in history.courses.get(key, ()):
            # Deliveries and confirmations travel over different connections.
            overtake_s = history.sending_s if arrival.way.sent is None else 0.0
            if (after_s := arrival.sent_s - acked_s) <= overtake_s:
                continue
            called_s = [at_s for at_s in history.acks_s(*key) if at_s <= acked_s]
            since_s = max(called_s, default=acked_s)
            if not history.was_sought(arrival.subscription, since_s, arrival.sent_s):
                yield f"again (3): {arrival} was sent {after_s:.3f} s after its ack was durable"


def in_flight_twice(history: History) -> Iterator[str]:
    """Find deliveries of one sender while an earlier one was in flight.

    A sender is a broker process. Where processes are not known, it is a connection.
    """
    for arrivals in _repeated(history):
        for i, later in enumerate(arrivals):
            for earlier in arrivals[:i]:
                if earlier.sender == later.sender and not may_be_over(
                    history, earlier, later.sent_s
                ):
                    yield f"twice (5): {later} was sent while it was in flight elsewhere"


def may_be_over(history: History, arrival: Arrival, at_s: float) -> bool:
    """Return whether a delivery may have ended by then."""
    ends = [arrival.returned_s, arrival.consumer.left_s, arrival.way.connection.ended_s]
    if any(end_s is not None and end_s <= at_s for end_s in ends):
        return True
    if history.was_sought(arrival.subscription, arrival.sent_s, at_s):
        return True
    return at_s >= history.expires_s(arrival)


def unexplained(history: History) -> Iterator[str]:
    """Find messages that came more often than returns, expiries and troubles explain.

    Each of these, and each change of the sending process, explains one more delivery. So no trouble
    adds more deliveries than there were messages in flight.
    """
    for arrivals in _repeated(history):
        explained = sum(_is_explanation(history, arrivals, at) for at in range(len(arrivals)))
        troubles = sum(
            began_s <= arrivals[-1].sent_s and arrivals[0].sent_s - history.sending_s <= ended_s
            for began_s, ended_s in history.troubles or ()
        )
        if len(arrivals) > 1 + explained + troubles:
            yield (
                f"repeated (5): {arrivals[0]} came {len(arrivals)} times. Returns and expiries"
                f" explain {explained} repeats, and troubles {troubles}"
            )


def _is_explanation(history: History, arrivals: list[Arrival], at: int) -> bool:
    """Return whether a delivery may have ended so that the message came again."""
    arrival, last_s = arrivals[at], arrivals[-1].sent_s
    if any(
        end_s is not None and end_s <= last_s
        for end_s in (arrival.returned_s, arrival.way.connection.ended_s)
    ):
        return True
    if history.was_sought(arrival.subscription, arrival.sent_s, last_s):
        return True
    if any(one.way.process != arrival.way.process for one in arrivals[at + 1 : at + 2]):
        return True  # another process took over
    expires_s = history.expires_s(arrival)
    # An acknowledgement in the first half of the ack wait comes in time, except in a trouble.
    in_time_s = (arrival.sent_s + expires_s) / 2
    is_acked = arrival.acked_s is not None and arrival.acked_s < in_time_s
    if is_acked and history.troubles is not None:
        return False
    left_s = arrival.consumer.left_s
    return expires_s <= last_s or (left_s is not None and left_s <= last_s)


def unmarked(history: History) -> Iterator[str]:
    """Find repeated messages that are not marked as redelivered."""
    for arrivals in _repeated(history):
        fresh = [one for one in arrivals if not one.again]
        # Where the order of sending is not known, any of them may be the first.
        is_known = arrivals[0].way.sent is not None
        unmarked = [
            later
            for earlier, later in pairwise(arrivals)
            if not later.again
            and not history.was_sought(later.subscription, earlier.sent_s, later.sent_s)
        ]
        if unmarked if is_known else len(fresh) > 1:
            yield f"unmarked (6): {arrivals[0]} came again without a mark"


def _repeated(history: History) -> Iterator[list[Arrival]]:
    """Yield the deliveries of each message that came more than once, in order."""
    for arrivals in history.courses.values():
        if len(arrivals) > 1:
            yield in_order(arrivals)
