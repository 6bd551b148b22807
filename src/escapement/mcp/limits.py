"""The limits that an operator sets for an agent. The rights of the token apply besides. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from escapement.access.pattern import ALL, Pattern
from escapement.client import delivery_times
from escapement.durations import format as duration_text
from escapement.errors import AccessDenied, DelayTooLong, InvalidRequest, LimitExceeded
from escapement.names import full_name

# The most bytes of a payload that an operator may allow. Results with larger ones would fill the
# context of any agent.
LARGEST_PAYLOAD_BYTES: Final = 1024 * 1024
# The most messages of one call that an operator may allow: a page of the broker.
MOST_MESSAGES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an agent.

    Attributes:
      topics: the topics that the agent may use.
      may_write: whether the agent may change anything.
      max_delay_ms: how far ahead the agent may schedule.
      max_pending_per_key: the most messages of a topic with the same key that may be pending when
        the agent schedules one with this key.
      max_messages: the most messages that a call lists, cancels or reschedules.
      max_payload_bytes: the most bytes that the agent may schedule as a payload with its
        properties, and the most bytes of a payload that it sees.
    """

    topics: tuple[Pattern, ...] = (ALL,)
    may_write: bool = False
    max_delay_ms: int = 30 * 86_400_000
    max_pending_per_key: int = 100
    max_messages: int = 100
    max_payload_bytes: int = 64 * 1024

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
          InvalidRequest: if a limit is too low or too high.
        """
        for name, value, most in (
            ("--max-pending-per-key", self.max_pending_per_key, MOST_MESSAGES),
            ("--max-messages", self.max_messages, MOST_MESSAGES),
            ("--max-payload", self.max_payload_bytes, LARGEST_PAYLOAD_BYTES),
        ):
            if not 1 <= value <= most:
                raise InvalidRequest(f"{name} must be from 1 to {most}, not {value}.")

    def allows(self, full: str) -> bool:
        """Return whether the agent may use the topic with this full name."""
        return any(pattern.covers(Pattern(full)) for pattern in self.topics)

    def topic(self, text: str) -> str:
        """Return the full name of a topic that the agent may use.

        Raises:
          InvalidRequest: if the text is not the name of a topic.
          AccessDenied: if the agent may not use the topic.
        """
        full = full_name(text)
        if not self.allows(full):
            raise AccessDenied(
                f"The operator of this server does not allow topic {full}. Allowed are: "
                f"{self.topics_in_words()}. Use one of these, or ask the operator to start "
                f"`escapement mcp` with --topic {full} too."
            )
        return full

    def topics_in_words(self) -> str:
        """Return the topics that the agent may use, as text."""
        return ", ".join(map(str, self.topics))

    def check_size(self, size_bytes: int) -> None:
        """Raise ``LimitExceeded`` if a payload and its properties are too large together."""
        if size_bytes > self.max_payload_bytes:
            raise LimitExceeded(
                f"The payload with its properties has {size_bytes} bytes, and at most "
                f"{self.max_payload_bytes} are allowed here. Send less, or send a reference to the "
                "data."
            )

    def check_time(self, delay: str | None, at: datetime | None, now_ms: int) -> None:
        """Check the delay or the time of a message, of which at most one may be given.

        Raises:
          InvalidRequest: if both are given, or one is not valid.
          DelayTooLong: if the message would be due too late.
        """
        delay_ms, at_ms = delivery_times.one(delay, at)
        ahead_ms = delay_ms if at is None else at_ms - now_ms
        if ahead_ms > self.max_delay_ms:
            raise DelayTooLong(
                f"Messages may be scheduled at most {duration_text(self.max_delay_ms)} ahead "
                "here. Choose an earlier time."
            )

    def check_count(self, count: int) -> None:
        """Raise ``LimitExceeded`` if a call is about too many messages."""
        if count > self.max_messages:
            raise LimitExceeded(
                f"More than {self.max_messages} messages are meant, and a call may change no more "
                "here. Nothing was changed. Find the messages with list_messages, and name their "
                "ids in several calls."
            )

    def check_pending(self, topic: str, key: str, count: int) -> None:
        """Raise ``LimitExceeded`` if one more message with a key would be too many.

        Args:
          count: the number of pending ones. The caller may stop counting at the limit.
        """
        if count >= self.max_pending_per_key:
            raise LimitExceeded(
                f"{self.max_pending_per_key} messages with key {key!r:.80} are pending on {topic}, "
                "and more are not allowed here. Nothing was scheduled. Wait until some are "
                "delivered, reschedule one of them, or cancel those that are not needed."
            )
