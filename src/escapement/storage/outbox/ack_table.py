"""The table of acknowledgements in the database of an application.

A consumer inserts a row for each message in the transaction of its own writes. So a message is
acknowledged exactly if its effects are committed. The primary key admits one row for each message
of a subscription. ``learned_at`` is NULL until the log has the acknowledgement.

The statement means the same on MySQL 8 and MariaDB 10.6 or newer, in every SQL mode.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from escapement.storage.outbox.tables import MAX_TOPIC_CHARS

ACKS: Final = "escapement_acks"

# How long a row is kept after the log has the acknowledgement.
KEEP_DAYS: Final = 7
# A consumer may not acknowledge an older delivery: the row of an earlier consumer may be deleted.
# This is half of the time above, so that wrong clocks do no harm.
MAX_AGE_MS: Final = KEEP_DAYS * 86_400_000 // 2
# The most messages that one INSERT acknowledges.
MAX_ACKED: Final = 4_096

FINGERPRINT_BYTES: Final = 8
# Big-endian, so that rows are sorted by subscription, then by offset.
_KEY: Final = Struct(f">16sqq{FINGERPRINT_BYTES}s")
# Not less than those of any key.
_LAST_OFFSET: Final = (1 << 63) - 1
_LAST_FINGERPRINT: Final = b"\xff" * FINGERPRINT_BYTES

CREATE_ACKS: Final = f"""CREATE TABLE IF NOT EXISTS {ACKS} (
    message BINARY({_KEY.size}) NOT NULL PRIMARY KEY,
    log BINARY(16) NOT NULL,
    topic VARCHAR({MAX_TOPIC_CHARS}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    subscription VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    message_offset BIGINT NOT NULL,
    acked_at DATETIME(3) NOT NULL,
    learned_at DATETIME(3) NULL,
    KEY log_learned_at (log, learned_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4"""


class AckKey(NamedTuple):
    """The primary key of a row: a message of a subscription.

    ``subscription_id`` changes with each seek, so a replayed message has another key. If the log is
    restored from a backup, new messages get the offsets of lost ones. ``fingerprint``, a digest of
    the content, tells them apart.
    """

    log: bytes
    subscription_id: int
    offset: int
    fingerprint: bytes

    def pack(self) -> bytes:
        """Return the key as the value of the column ``message``."""
        return _KEY.pack(*self)

    @classmethod
    def unpack(cls, message: bytes) -> AckKey:
        """Return the key that is in the column ``message``."""
        return cls(*_KEY.unpack(message))

    def after_subscription(self) -> bytes:
        """Return a value behind all keys of the same subscription, and before those of others."""
        return AckKey(self.log, self.subscription_id, _LAST_OFFSET, _LAST_FINGERPRINT).pack()
