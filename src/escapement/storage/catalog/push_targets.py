"""Push targets: the URLs to which messages of subscriptions are posted, and their signing secrets.

Owns the table ``push_targets``. A target belongs to a subscription, across seeks, and is deleted
with it (``catalog.py``). Each function that writes runs inside a transaction of the caller.

A post is signed with a shared secret, so the database has the secrets themselves and not only
digests. While a secret is being replaced, posts are signed with both.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from escapement.errors import AlreadyExists, InvalidRequest
from escapement.storage.catalog import rule
from escapement.storage.catalog.policy import Policy
from escapement.storage.engine.base import Connection, Row

# The size of a new secret. Standard Webhooks recommends 24 to 64 bytes.
_SECRET_BYTES: Final = 32
# The bounds of the time in which an endpoint must answer.
MIN_TIMEOUT_MS: Final = 100
MAX_TIMEOUT_MS: Final = 60_000
# How much longer the ack wait of a message is than the timeout. An acknowledgement needs some of it
# to reach the broker.
ACK_MARGIN_MS: Final = 10_000
MAX_CONCURRENCY: Final = 100

_COLUMNS: Final = "origin_id, topic_id, policy, secret, old_secret, old_until_ms, created_at_ms"


@dataclass(frozen=True, slots=True)
class PushPolicy(Policy):
    """The settings of a push target."""

    WHAT: ClassVar[str] = "push target"

    url: str = rule.url("URL to which each message is posted.")
    timeout_ms: int = rule.duration(
        10_000, "How long the endpoint may take to answer, from 100ms to 1m."
    )
    concurrency: int = rule.number(
        10, MAX_CONCURRENCY, "Most posts at a time, from each process of `escapement push`."
    )
    paused: bool = rule.flag("Whether nothing is posted.")

    def _check_together(self, given: Collection[str]) -> None:
        if not self.url:
            raise InvalidRequest("A push target needs a URL.")
        if not MIN_TIMEOUT_MS <= self.timeout_ms <= MAX_TIMEOUT_MS:
            raise InvalidRequest("timeout_ms must be from 100ms to 1m.")
        if not self.concurrency:
            raise InvalidRequest("concurrency must be at least 1.")


@dataclass(frozen=True, slots=True)
class PushTarget:
    """A push target as it is stored.

    Attributes:
      origin_id: that of the subscription.
    """

    origin_id: int
    topic_id: int
    policy: PushPolicy
    secret: bytes = field(repr=False)
    old_secret: bytes | None = field(default=None, repr=False)
    old_until_ms: int = 0
    created_at_ms: int = 0

    @property
    def ack_wait_ms(self) -> int:
        """How long a message may stay unacknowledged: longer than the endpoint may take."""
        return self.policy.timeout_ms + ACK_MARGIN_MS

    def secrets(self, now_ms: int) -> list[str]:
        """Return the secrets that sign a post now, as texts, the newest first."""
        both = self.old_secret is not None and now_ms < self.old_until_ms
        found = [self.secret, self.old_secret] if both else [self.secret]
        return [secret_text(one) for one in found if one is not None]

    def rotated(self, until_ms: int) -> PushTarget:
        """Return the target with a new secret. The present one also signs until ``until_ms``."""
        return replace(self, secret=new_secret(), old_secret=self.secret, old_until_ms=until_ms)


def new_secret() -> bytes:
    """Return a random secret."""
    return secrets.token_bytes(_SECRET_BYTES)


def secret_text(secret: bytes) -> str:
    """Return a secret in the form that libraries for Standard Webhooks take."""
    return "whsec_" + base64.b64encode(secret).decode()


def insert_push_target(connection: Connection, target: PushTarget) -> None:
    """Store a new target. Raises ``AlreadyExists`` if the subscription has one."""
    if find_push_target(connection, target.origin_id) is not None:
        raise AlreadyExists("The subscription has a push target already.")
    connection.execute(
        f"INSERT INTO push_targets ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            target.origin_id,
            target.topic_id,
            target.policy.encode(),
            target.secret,
            target.old_secret,
            target.old_until_ms,
            target.created_at_ms,
        ),
    )


def update_push_target(connection: Connection, target: PushTarget) -> None:
    """Store the settings and secrets of a target."""
    connection.execute(
        "UPDATE push_targets SET policy = ?, secret = ?, old_secret = ?, old_until_ms = ?"
        " WHERE origin_id = ?",
        (
            target.policy.encode(),
            target.secret,
            target.old_secret,
            target.old_until_ms,
            target.origin_id,
        ),
    )


def delete_push_target(connection: Connection, origin_id: int) -> None:
    """Delete the target of a subscription, if it has one."""
    connection.execute("DELETE FROM push_targets WHERE origin_id = ?", (origin_id,))


def find_push_target(connection: Connection, origin_id: int) -> PushTarget | None:
    """Return the target of a subscription; None if it has none."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM push_targets WHERE origin_id = ?", (origin_id,)
    ).rows
    return _target(rows[0]) if rows else None


def read_push_targets(connection: Connection, bundle_id: int) -> list[PushTarget]:
    """Return the targets of all subscriptions of a bundle."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM push_targets"
        " WHERE topic_id IN (SELECT id FROM topics WHERE bundle_id = ?) ORDER BY origin_id",
        (bundle_id,),
    ).rows
    return [_target(row) for row in rows]


def _target(row: Row) -> PushTarget:
    origin_id, topic_id, policy, secret, old_secret, old_until_ms, created_at_ms = row
    return PushTarget(
        origin_id,
        topic_id,
        PushPolicy.decode(policy),
        bytes(secret),
        None if old_secret is None else bytes(old_secret),
        old_until_ms,
        created_at_ms,
    )
