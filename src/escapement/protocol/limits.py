"""Every limit of the wire, by name.

These are ceilings of the protocol: no peer may go past them, whatever it was
configured to. A broker may announce lower ones in ``Welcome.limits``; the names it
uses there are at the end of this file.
"""

from __future__ import annotations

from typing import Final

PROTOCOL_VERSION: Final = 1
DEFAULT_PORT: Final = 7650

# The largest frame, its length prefix not counted. A batch of 1 MB is what a group
# commit likes; 16 MiB leaves room for large payloads and still bounds a connection.
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
# Before the handshake a peer is a stranger, who gets no more memory than this.
MAX_HANDSHAKE_BYTES: Final = 64 * 1024
# Frames that hold plain values (requests, errors) and not columns.
MAX_PLAIN_BYTES: Final = 1024 * 1024
# How much may be handed over in one read beyond a full frame; only the caller of
# ``receive_data`` can go past it, by not draining the events.
MAX_READ_BYTES: Final = 4 * 1024 * 1024

# Plain values: how deep maps and lists may nest, and how many of them one frame may
# have. An empty list is one byte on the wire and 56 in memory, hence the second bound;
# an answer may be long (a list of all topics), a request has no reason to.
MAX_DEPTH: Final = 8
MAX_REQUEST_CONTAINERS: Final = 1024
MAX_REPLY_CONTAINERS: Final = 200_000
MAX_ITEMS: Final = 100_000

# Fields of one command: they fit msgpack's one-byte array header.
MAX_FIELDS: Final = 15

# "persistent://" and three names of 200 with slashes between them.
MAX_TOPIC_CHARS: Final = 640
MAX_NAME_CHARS: Final = 200
MAX_VERB_CHARS: Final = 64
MAX_CODE_CHARS: Final = 64
MAX_MESSAGE_CHARS: Final = 4096

# Messages in one Publish or Deliver.
MAX_BATCH_MESSAGES: Final = 65_536
# Offsets, or ranges of them, in one Ack or Nack: 8 MiB of column.
MAX_ACK_ROWS: Final = 1024 * 1024
# Credit a consumer may hold at a time; it bounds what the broker sends unasked.
MAX_PERMITS: Final = 1_000_000

MAX_ID: Final = 2**32 - 1
MAX_INT64: Final = 2**63 - 1

# Keys of ``Welcome.limits``.
LIMIT_FRAME_BYTES: Final = "max_frame_bytes"
LIMIT_BATCH_MESSAGES: Final = "max_batch_messages"
LIMIT_BATCH_BYTES: Final = "max_batch_bytes"
LIMIT_DELAY_MS: Final = "max_delay_ms"
