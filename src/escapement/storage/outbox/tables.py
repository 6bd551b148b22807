"""The tables of an outbox in the database of an application, and the limits of their columns.

An application inserts rows into ``escapement_outbox`` in its own transactions. A row is a message,
or a request to cancel or reschedule earlier messages. Rows that can never take effect go to
``escapement_outbox_refused``, with the reason. An operator may map further tables, which then are
outboxes too; ``escapement_outbox_mapping`` has their mappings. Each outbox has a row in
``escapement_outbox_identity``: a random id, so that the log recognises the outbox under any host,
address or database name, the id of the log that the outbox belongs to, the number of the last batch
whose rows are done, and the mapping by which the next batch is moved.

The statements mean the same on MySQL 8 and MariaDB 10.6 or newer, in every SQL mode.
"""

from __future__ import annotations

from typing import Final

from escapement.message import DEFAULT_PRIORITY
from escapement.storage.inbox.entry import MAX_ENTRY_BYTES

OUTBOX: Final = "escapement_outbox"
REFUSED: Final = "escapement_outbox_refused"
IDENTITY: Final = "escapement_outbox_identity"
MAPPING: Final = "escapement_outbox_mapping"

MAX_TOPIC_CHARS: Final = 640
MAX_KEY_CHARS: Final = 1024
MAX_DEDUP_CHARS: Final = 255
MAX_REASON_CHARS: Final = 1024
MAX_TABLE_CHARS: Final = 64
MAX_ID_CHARS: Final = 768
# The values of the column ``action``. A row with an action is a request about earlier messages of
# its topic. It names them by their key, their dedup key, or the id of one message in ``payload``.
CANCEL: Final = "cancel"
RESCHEDULE: Final = "reschedule"
# The limit of payload and headers together. With its key and its columns in the encoding, such a
# message fits into one inbox entry.
MAX_MESSAGE_BYTES: Final = MAX_ENTRY_BYTES - (64 << 10)

_TEXT: Final = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_COLUMNS: Final = f"""
    topic VARCHAR({MAX_TOPIC_CHARS}) {_TEXT} NOT NULL,
    `key` VARCHAR({MAX_KEY_CHARS}) {_TEXT} NULL,
    payload LONGBLOB NOT NULL,
    headers JSON NULL,
    due_at DATETIME(3) NULL,
    dedup_key VARCHAR({MAX_DEDUP_CHARS}) {_TEXT} NULL,
    priority TINYINT UNSIGNED NOT NULL DEFAULT {DEFAULT_PRIORITY},
    action VARCHAR(16) {_TEXT} NULL,
"""

# Refused headers may be anything, so they are no JSON in the table of refused rows.
# ``payload_bytes`` is stored, because the broker looks at the sizes of many rows before it reads
# any payload. The column ``outbox`` has the name of a table.
_OUTBOX: Final = f"outbox VARCHAR({MAX_TABLE_CHARS}) {_TEXT} NOT NULL"
CREATE: Final = (
    f"""CREATE TABLE IF NOT EXISTS {OUTBOX} (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,{_COLUMNS}\
    payload_bytes BIGINT GENERATED ALWAYS AS (OCTET_LENGTH(payload)) STORED
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4""",
    f"""CREATE TABLE IF NOT EXISTS {REFUSED} (
    refused_id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    refused_at DATETIME(3) NOT NULL,
    reason VARCHAR({MAX_REASON_CHARS}) {_TEXT} NOT NULL,
    {_OUTBOX},
    id VARCHAR({MAX_ID_CHARS}) {_TEXT} NOT NULL,{_COLUMNS.replace("JSON", "LONGTEXT")}\
    row_json LONGTEXT {_TEXT} NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4""",
    f"""CREATE TABLE IF NOT EXISTS {IDENTITY} (
    {_OUTBOX} PRIMARY KEY,
    identity BINARY(16) NOT NULL,
    log BINARY(16) NULL,
    batch BIGINT NOT NULL,
    mapping LONGTEXT {_TEXT} NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4""",
    f"""CREATE TABLE IF NOT EXISTS {MAPPING} (
    {_OUTBOX} PRIMARY KEY,
    mapping LONGTEXT {_TEXT} NOT NULL,
    added_at DATETIME(3) NOT NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4""",
    f"""INSERT IGNORE INTO {IDENTITY} (outbox, identity, log, batch)
VALUES ('{OUTBOX}', UNHEX(REPLACE(UUID(), '-', '')), NULL, 0)""",
)
# Gives each outbox of the database a new identity, for the log that serves it next.
RESET: Final = (
    f"UPDATE {IDENTITY} SET identity = UNHEX(REPLACE(UUID(), '-', '')), log = NULL, batch = 0"
)
