"""A message of a request to publish, as JSON or as headers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from escapement.client.producing.producer import Producer
from escapement.client.producing.receipt import Receipts
from escapement.client.producing.replace import Replace
from escapement.errors import InvalidRequest
from escapement.http.json_values import restored
from escapement.message import DEFAULT_PRIORITY

# The most messages of one request.
MOST_MESSAGES: Final = 1000

Value = TypeVar("Value")

Duration = Annotated[
    str,
    Meta(
        pattern="^[0-9]{1,19}(ms|s|m|h|d|w)$",
        description="A whole number and a unit: ms, s, m, h, d or w.",
        examples=["3m"],
    ),
]
Moment = Annotated[
    datetime, Meta(tz=True, description="A time with its offset from UTC (RFC 3339).")
]
Priority = Annotated[int, Meta(ge=0, le=255, description="Lower numbers are delivered first.")]
Properties = Annotated[
    dict[str, Any], Meta(description='Values for the application. Bytes are {"base64": "…"}.')
]


class NewReplace(Struct, forbid_unknown_fields=True):
    """How a message meets a pending one with the same replace key."""

    key: str
    mode: Literal["latest", "first", "debounce"] = "latest"
    max_wait: Duration | None = None

    def value(self) -> Replace:
        """Return the argument of the client."""
        if (self.mode == "debounce") != (self.max_wait is not None):
            raise InvalidRequest(
                "replace: max_wait is needed with the mode debounce, and only then"
            )
        if self.max_wait is not None:
            return Replace.debounce(self.key, max_wait=self.max_wait)
        return Replace.first(self.key) if self.mode == "first" else Replace.latest(self.key)


class NewMessage(Struct, forbid_unknown_fields=True):
    """A message to publish. Its payload is one of ``json``, ``text`` and ``base64``.

    It is delivered at once, after ``delay``, or at the time ``at``. Within the dedup window of the
    topic, a second message with the same ``idempotency_key`` is not stored.
    """

    json: Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: bytes | UnsetType = UNSET
    delay: Duration | None = None
    at: Moment | None = None
    idempotency_key: str | None = None
    key: str | None = None
    priority: Priority | None = None
    properties: Properties | None = None
    group: str | None = None
    replace: NewReplace | None = None

    def payload(self) -> bytes:
        """Return the payload.

        Raises:
          InvalidRequest: unless exactly one of ``json``, ``text`` and ``base64`` is given.
        """
        given = [one for one in (self.json, self.text, self.base64) if one is not UNSET]
        if len(given) != 1:
            raise InvalidRequest("Give each message exactly one of json, text and base64.")
        (one,) = given
        return one.encode() if isinstance(one, str) else bytes(one)


class NewBatch(Struct, forbid_unknown_fields=True):
    """Messages to publish. ``spread`` scatters their due times over a span."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=MOST_MESSAGES)]
    spread: Duration | None = None


async def send(producer: Producer, messages: Sequence[NewMessage], spread: str | None) -> Receipts:
    """Publish messages, and wait until all are durable.

    Raises:
      InvalidRequest: if a message is not valid, or some have delays and others have times.
      EscapementError: if the broker refuses, or does not answer in time.
    """
    delays = _column([one.delay for one in messages])
    ats = _column([one.at for one in messages])
    if delays is not None and ats is not None:
        raise InvalidRequest("Give the messages of a request either delays or times, not both.")
    given = [DEFAULT_PRIORITY if one.priority is None else one.priority for one in messages]
    return await producer.send_many(
        [one.payload() for one in messages],
        delay=delays,
        at=ats,
        keys=_column([one.key for one in messages]),
        properties=_column([restored(one.properties) for one in messages]),
        priorities=given if any(one != DEFAULT_PRIORITY for one in given) else None,
        dedup=_column([one.idempotency_key for one in messages]),
        groups=_column([one.group for one in messages]),
        spread=spread,
        replace=_column([None if one.replace is None else one.replace.value() for one in messages]),
    )


def _column(values: list[Value]) -> list[Value] | None:
    """Return the values of all messages, or None if no message has one."""
    return None if all(value is None for value in values) else values
