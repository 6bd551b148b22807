"""The limits of the protocol, which no client and no broker may exceed.

A broker may announce lower limits in ``Welcome.limits``, under the names at the end of this file. A
*plain value* is None, a bool, a number, a str, bytes, or a list or map of plain values. A *column*
is an array of numbers.
"""

from __future__ import annotations

from typing import Final

PROTOCOL_VERSION: Final = 1
DEFAULT_PORT: Final = 7650

# The largest frame, without the length before it. Batches of about 1 MB are best for the group
# commit. 16 MiB leaves room for large payloads, and still bounds the memory of a connection.
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
# The largest frame that a broker accepts before the handshake is done. It bounds the memory for
# unknown clients.
MAX_HANDSHAKE_BYTES: Final = 4 * 1024
# The largest frame that a client accepts before the handshake is done.
MAX_WELCOME_BYTES: Final = 64 * 1024
# The largest frame without columns, such as a request or an error.
MAX_PLAIN_BYTES: Final = 1024 * 1024
# The most data that a caller may pass to the decoder of frames at a time.
MAX_READ_BYTES: Final = 4 * 1024 * 1024

# How deep lists and maps may be nested in a plain value, and how many of them a request and a
# reply may have. Their number is bounded because an empty list takes one byte on the wire and 56 in
# memory. A reply may be long, such as a list of all topics. A request is short. Its lists and maps
# together have at most ``MAX_REQUEST_ITEMS`` items, which take some milliseconds to check.
MAX_DEPTH: Final = 8
MAX_REQUEST_CONTAINERS: Final = 1024
MAX_REQUEST_ITEMS: Final = 20_000
MAX_REPLY_CONTAINERS: Final = 200_000
# The most items of one list or map.
MAX_ITEMS: Final = 100_000

# The most elements of a frame: a command's type and its fields. More would not fit the one-byte
# array header of msgpack.
MAX_FIELDS: Final = 15

# "persistent://", and three names of 200 characters with slashes between them.
MAX_TOPIC_CHARS: Final = 640
MAX_NAME_CHARS: Final = 200
MAX_VERB_CHARS: Final = 64
LOG_ID_BYTES: Final = 16
MAX_TOKEN_CHARS: Final = 200
MAX_CODE_CHARS: Final = 64
# The reason of a client, or of one request. With all its bytes it fits a Hello.
MAX_REASON_CHARS: Final = 500
# A host name of 253 characters, a colon and a port.
MAX_ADDRESS_CHARS: Final = 260
# The detail of a reject, such as "HTTP 410". Each rejected message has it in memory until its dead
# letter is written.
MAX_DETAIL_CHARS: Final = 200
# The highest id of a bundle that a frame can name. Brokers have fewer bundles.
MAX_BUNDLE: Final = 4095
MAX_MESSAGE_CHARS: Final = 4096

# The most columns of a message table, which MySQL and MariaDB limit to this.
MAX_TABLE_FIELDS: Final = 4096

# The most messages in one Publish or Deliver.
MAX_BATCH_MESSAGES: Final = 65_536
# The most offsets, or ranges of offsets, in one Ack or Nack: 8 MiB per column.
MAX_ACK_ROWS: Final = 1024 * 1024
# The most permits that a consumer may grant at a time. A broker sends a consumer at most one
# message per permit.
MAX_PERMITS: Final = 1_000_000

MAX_ID: Final = 2**32 - 1
MAX_INT64: Final = 2**63 - 1

# The keys of the map ``Welcome.limits``.
LIMIT_FRAME_BYTES: Final = "max_frame_bytes"
LIMIT_BATCH_MESSAGES: Final = "max_batch_messages"
LIMIT_BATCH_BYTES: Final = "max_batch_bytes"
LIMIT_DELAY_MS: Final = "max_delay_ms"
# Only a broker that knows replace keys announces it.
LIMIT_REPLACE_KEYS: Final = "max_replace_keys"
# The most messages in one Reject. Only a broker that knows this command announces it.
LIMIT_REJECTS: Final = "max_rejects"
# The most characters of the reason of a request. Only a broker that knows this field announces it.
LIMIT_REASON: Final = "max_reason_chars"
# The same of the reason of OpenProducer, a later field.
LIMIT_PRODUCER_REASON: Final = "max_producer_reason_chars"
# The most characters of the detail of a Reject. Only a broker that knows this field announces it.
LIMIT_DETAIL: Final = "max_detail_chars"
# The number of bundles, the bundle of the connection, and the epoch of its broker's lease. Only a
# broker of a database with several bundles announces them.
LIMIT_BUNDLES: Final = "bundles"
LIMIT_BUNDLE: Final = "bundle"
LIMIT_EPOCH: Final = "epoch"
# The id of the broker's log, bytes. Each database has its own.
LIMIT_LOG: Final = "log"

# The keys of the map ``Hello.features``. A client that understands Moved sends 1.
FEATURE_MOVED: Final = "moved"
# A client that understands the field ``bundles`` of Owner sends 1.
FEATURE_BUNDLES: Final = "bundles"
# A client that understands the ack deadlines of Deliver sends 1.
FEATURE_ACK_DEADLINES: Final = "ack_deadlines"
# The id of the bundle that the client wants. Without it, the client accepts any bundle.
FEATURE_BUNDLE: Final = "bundle"
# The id of the log that the client has used before, bytes. A broker of another log refuses it.
FEATURE_LOG: Final = "log"
# A client that only asks for the state of the cluster sends 1. Nodes without bundles welcome it.
FEATURE_OBSERVER: Final = "observer"
# Why the client makes its administrative requests, for the audit log: a str.
FEATURE_REASON: Final = "reason"
