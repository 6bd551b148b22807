"""The limits of the protocol.

No peer may exceed these limits, whatever its configuration. A broker may announce lower
limits in ``Welcome.limits``, under the names at the end of this file.
"""

from __future__ import annotations

from typing import Final

PROTOCOL_VERSION: Final = 1
DEFAULT_PORT: Final = 7650

# The largest frame, without its length prefix. Batches of about 1 MB suit the group commit;
# 16 MiB leaves room for large payloads and still bounds the memory of a connection.
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
# The largest frame before the handshake is done, to bound the memory of unknown peers.
MAX_HANDSHAKE_BYTES: Final = 64 * 1024
# The largest frame of plain values (requests, errors), as opposed to columns.
MAX_PLAIN_BYTES: Final = 1024 * 1024
# The most data of one read beyond a full frame. Only a caller of ``receive_data`` that does
# not drain the events can exceed it.
MAX_READ_BYTES: Final = 4 * 1024 * 1024

# The depth of nested maps and lists in plain values, and their number in one frame. The
# number is bounded because an empty list takes one byte on the wire and 56 in memory. A
# reply may be long (a list of all topics); a request is short.
MAX_DEPTH: Final = 8
MAX_REQUEST_CONTAINERS: Final = 1024
MAX_REPLY_CONTAINERS: Final = 200_000
MAX_ITEMS: Final = 100_000

# Fields of one command. The number fits the one-byte array header of msgpack.
MAX_FIELDS: Final = 15

# "persistent://" and three names of 200 with slashes between them.
MAX_TOPIC_CHARS: Final = 640
MAX_NAME_CHARS: Final = 200
MAX_VERB_CHARS: Final = 64
MAX_CODE_CHARS: Final = 64
MAX_MESSAGE_CHARS: Final = 4096

# Messages in one Publish or Deliver.
MAX_BATCH_MESSAGES: Final = 65_536
# Offsets, or ranges of offsets, in one Ack or Nack: 8 MiB per column.
MAX_ACK_ROWS: Final = 1024 * 1024
# Permits that a consumer may have granted at a time. They bound the unrequested messages
# that the broker sends.
MAX_PERMITS: Final = 1_000_000

MAX_ID: Final = 2**32 - 1
MAX_INT64: Final = 2**63 - 1

# Keys of ``Welcome.limits``.
LIMIT_FRAME_BYTES: Final = "max_frame_bytes"
LIMIT_BATCH_MESSAGES: Final = "max_batch_messages"
LIMIT_BATCH_BYTES: Final = "max_batch_bytes"
LIMIT_DELAY_MS: Final = "max_delay_ms"
