"""One message's life, as a client sees it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from escapement.client.schedule import moment
from escapement.message import MessageId


@dataclass(frozen=True, slots=True)
class Standing:
    """How one subscription stands to a message.

    ``state`` is one of: not covered, pending, waiting, ready, in flight, in retry, to be
    dead-lettered, acknowledged, lapsed, cancelled. In flight it has the consumer's name, since
    when, and until when at most; in retry ``until`` is when it is tried again. Lapsed is what
    expired, or was dropped by a quota, before anybody was handed it; acknowledged is also what
    did between two attempts, or is a dead letter now. Of what is acknowledged no more is
    remembered, and ``attempts`` is None.
    """

    subscription: str
    kind: str
    state: str
    attempts: int | None
    consumer: str | None
    since: datetime | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Life:
    """What a message is and what became of it; ``payload`` is its first 512 bytes.

    ``state`` is to_be_fired (not yet due), fired (due), or, when every subscription that is to
    get it is done with it, acked (one has acknowledged it), lapsed (all let it go before anybody
    was handed it) or cancelled.
    """

    id: MessageId
    state: str
    published_at: datetime
    due_at: datetime
    key: str | None
    properties: dict[str, Any]
    priority: int
    group: str | None
    size_bytes: int
    payload: bytes
    subscriptions: list[Standing]

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Life:
        """What the broker answered."""
        return cls(
            MessageId(answer["topic"], answer["offset"]),
            answer["state"],
            moment(answer["published_at_ms"]),
            moment(answer["due_at_ms"]),
            answer["key"],
            answer["properties"],
            answer["priority"],
            answer["group"],
            answer["size_bytes"],
            answer["payload"],
            [
                Standing(
                    one["subscription"],
                    one["kind"],
                    one["state"],
                    one["attempts"],
                    one["consumer"],
                    _moment(one["since_at_ms"]),
                    _moment(one["until_at_ms"]),
                )
                for one in answer["subscriptions"]
            ],
        )


def _moment(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else moment(at_ms)
