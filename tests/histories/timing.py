"""No message comes early, and cancels and reschedules take effect (invariants 2 and 10)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from histories.history import NEVER_MS, Amendment, History, Message, in_order


def early(history: History) -> Iterator[str]:
    """Find deliveries before the due time that the broker itself names."""
    for arrival in history.arrivals:
        if history.kinds[arrival.subscription] == "log":
            continue
        if arrival.broker_ms < arrival.due_ms and not _clock_was_set(history, arrival.sent_s):
            yield f"early (2): {arrival} came {arrival.due_ms - arrival.broker_ms} ms early"


def _clock_was_set(history: History, at_s: float) -> bool:
    return any(0 <= at_s - step_s <= history.sending_s for step_s in history.skew_steps_s)


def amended(history: History) -> Iterator[str]:
    """Find deliveries of cancelled messages, and those before the time that was asked for."""
    for (name, offset), arrivals in history.courses.items():
        first = in_order(arrivals)[0]
        message = history.messages[first.number]
        is_first_copy = offset == history.first_copy(message)
        if is_first_copy and any(
            one.due_ms is None and one.surely_concerns(name) for one in message.amendments
        ):
            yield f"cancelled (10): {first} was delivered although it was cancelled"
        if history.kinds[name] != "log":
            earliest_ms = earliest_due_ms(message, name, message.amendments, is_first_copy)
            if first.due_ms < earliest_ms:
                yield (
                    f"early (10): {first} was due {earliest_ms - first.due_ms} ms before the time"
                    f" that was asked for, by {message.amendments}"
                )


def earliest_due_ms(
    message: Message, name: str, amendments: Sequence[Amendment], is_first_copy: bool = True
) -> int:
    """Return the earliest due time that a copy may have after some amendments.

    An amendment decides the time unless another one surely took effect after it. A redriven copy
    may have any due time that the message had.
    """
    moves = [one for one in amendments if one.due_ms is not None and one.may_concern(name)]
    sure = [one.called_ms for one in moves if is_first_copy and one.surely_concerns(name)]
    earliest_ms = NEVER_MS if sure else message.earliest_ms
    for one in moves:
        if one.done is None or one.answered_ms >= max(sure, default=0):
            earliest_ms = min(earliest_ms, one.due_ms)
    return earliest_ms
