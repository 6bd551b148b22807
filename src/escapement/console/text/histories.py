"""The state of a message in a subscription, and what became of a request, in plain words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from escapement.console.text.times import span
from escapement.protocol.amend_status import AmendStatus

# The state of a message as a whole, as the broker names it, and in words.
WHOLE: Final = {
    "to_be_fired": "not yet due",
    "fired": "due",
    "acked": "acknowledged",
    "lapsed": "lapsed",
    "cancelled": "cancelled",
}
# Why a message is in a state. "in flight" and "in retry" are said with their details.
_CAUSES: Final = {
    "not covered": "The subscription begins later, so it does not get this message.",
    "pending": "The message is not yet due.",
    "waiting": "The message is due. The broker has not loaded it for delivery yet.",
    "ready": "The message is due, and waits for a consumer that has room.",
    "to be dead-lettered": "The last attempt failed. The broker is about to write the dead letter.",
    "acknowledged": "A consumer acknowledged it. Or it expired or was dropped after an attempt, or "
    "its dead letter was sent back or deleted. The broker keeps neither which nor when.",
    "lapsed": "It expired, or a quota dropped it, before its first delivery. The broker keeps "
    "neither which nor when.",
    "cancelled": "It was cancelled, or a later message with its replace key took its place, before "
    "it was delivered to this subscription. The broker keeps neither which nor when.",
}
# The subscription of a dead-letter topic that has its dead letters until they are sent back or
# deleted.
DEAD_LETTERS: Final = "dead-letters"
_OF_A_DEAD_LETTER: Final = (
    "The dead letter was sent back or deleted. The broker keeps neither which nor when."
)
# The states of which the broker keeps no times.
OVER: Final = ("acknowledged", "lapsed", "cancelled")
# Why a subscription gave a message up, by the reason of the dead letter.
DEATHS: Final = {
    "nack": "a consumer reported a failure at the last attempt",
    "timeout": "a consumer did not acknowledge the last attempt in time",
    "disconnect": "the consumer of the last attempt disconnected",
    "expired": "it expired",
    "dropped": "a quota dropped it",
    "rejected": "a consumer rejected it",
}


def cause(status: Mapping[str, Any], *, is_dead_letter: bool = False) -> str:
    """Return why a message is in its state in a subscription.

    Args:
      status: the state, as the verb ``messages.show`` returns it.
      is_dead_letter: whether the message is a dead letter of another topic.
    """
    state = status["state"]
    if is_dead_letter and (status["subscription"], state) == (DEAD_LETTERS, "acknowledged"):
        return _OF_A_DEAD_LETTER
    if state == "in flight":
        holder = status["consumer"] or "A consumer that has left"
        if status["until_at_ms"] is None:
            return f"{holder} holds it until it acknowledges it or leaves."
        return f"{holder} holds it. Without an acknowledgement, the broker redelivers it."
    if state == "in retry":
        return "An attempt failed. The broker redelivers it after a back-off."
    return _CAUSES.get(state, "")


def lateness(status: Mapping[str, Any], due_ms: int, now_ms: int) -> str:
    """Return how late the delivery to a subscription was, or is by now; "" if that is not known."""
    state = status["state"]
    if state == "in flight" and status["since_at_ms"] is not None:
        late_ms = status["since_at_ms"] - due_ms
        attempt = "attempt began" if status["attempts"] != 1 else "delivered"
        return f"{attempt} {span(late_ms)} after the due time" if late_ms >= 0 else "before due"
    if state in ("waiting", "ready") and due_ms <= now_ms:
        return f"{span(now_ms - due_ms)} overdue"
    return ""


def death(letter: Mapping[str, Any]) -> str:
    """Return why a subscription gave a message up.

    Args:
      letter: its dead letter, as the verb ``dlq.find`` returns it.
    """
    reason = letter.get("reason", "unknown")
    text = DEATHS.get(reason, reason)
    detail = letter.get("detail")
    return f"{text}: {detail}" if detail else text


def outcome(status: AmendStatus, handed: Sequence[str], done: str) -> str:
    """Return what a request did to a message.

    Args:
      handed: the subscriptions that had the message before, and keep it.
      done: what a change does, such as "Cancelled".
    """
    if status is AmendStatus.DONE:
        text = f"{done}."
        if handed:
            text += f" Not for {', '.join(handed)}: it had been delivered there before."
        return text
    return {
        AmendStatus.UNKNOWN: "Not found: the topic has no such message.",
        AmendStatus.DELIVERED: "Not changed: every subscription has received it before.",
        AmendStatus.CANCELLED: "Not changed: it was cancelled before.",
        AmendStatus.OVER: "Not changed: no subscription will receive it. It has expired, was "
        "dropped, or is no longer in the log.",
    }[status]
