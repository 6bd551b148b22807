"""A message from which the form of a new message is filled. It may be a dead letter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from escapement.client.administration.reading import PublishedMessage
from escapement.client.broker import Broker
from escapement.console.text.payload_fields import Kind, fields_of
from escapement.console.text.property_fields import field_of
from escapement.errors import InvalidRequest, NotFound
from escapement.names import read_message_id

# The largest payload in a form. Escaped by the browser, it takes up to six times as many bytes.
_MOST_BYTES: Final = 1 << 20
# The properties of a dead letter that the broker added begin with this.
DEAD_PREFIX: Final = "dead_letter_"


def own_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that a dead letter had before it died."""
    return {name: value for name, value in properties.items() if not name.startswith(DEAD_PREFIX)}


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Names a dead letter: the subscription that gave the message up, and where it is."""

    topic: str
    subscription: str
    lie_in: str
    offset: int

    @classmethod
    def of(cls, properties: Mapping[str, Any], topic: str, offset: int) -> DeadLetter | None:
        """Return the dead letter that a message is; None if it is none."""
        origin, subscription = (
            properties.get(DEAD_PREFIX + one) for one in ("topic", "subscription")
        )
        if isinstance(origin, str) and isinstance(subscription, str):
            return cls(origin, subscription, topic, offset)
        return None


@dataclass(frozen=True, slots=True)
class Source:
    """A message as the fields of a form. A dead letter gives those of the original message.

    Attributes:
      topic: the topic for the new message.
      properties: a JSON object, without the properties in ``left_out``.
      left_out: the names of properties that the form cannot hold.
    """

    id: str
    topic: str
    kind: Kind
    payload: str
    key: str
    properties: str
    left_out: list[str]
    priority: int
    group: str
    due_ms: int
    dead_letter: DeadLetter | None

    @classmethod
    async def read(cls, broker: Broker, id: str) -> Source:
        """Read a message, with its whole payload, from the log.

        Raises:
          InvalidRequest: if the id is not valid, the message is a row of a message table, or its
            payload is too large for a form.
          NotFound: if the log does not have it.
        """
        topic, offset = read_message_id(id)
        async for page in broker.read(topic, offset, offset + 1, page_messages=1):
            if page.messages.fields is not None:
                raise InvalidRequest("A row of a message table cannot be published again.")
            if len(page.payloads.data) > _MOST_BYTES:
                raise InvalidRequest(
                    f"The payload of {id} has more than {_MOST_BYTES} bytes, too many for a form."
                    " Publish it with a program."
                )
            return cls._of(page[0])
        raise NotFound(f"The log does not have the message {id}.")

    @classmethod
    def _of(cls, message: PublishedMessage) -> Source:
        topic, offset = message.id
        properties = message.properties
        dead_letter = DeadLetter.of(properties, topic, offset)
        if dead_letter is not None:
            properties = own_properties(properties)
        kind, payload = fields_of(message.payload)
        text, left_out = field_of(properties)
        return cls(
            str(message.id),
            topic if dead_letter is None else dead_letter.topic,
            kind,
            payload,
            message.key or "",
            text,
            left_out,
            message.priority,
            message.group or "",
            message.due_ms,
            dead_letter,
        )
