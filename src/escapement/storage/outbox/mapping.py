"""The mapping of an outbox: which columns of its table become which parts of a message.

``escapement_outbox`` is one mapping, ``OURS``. An operator maps other tables with ``escapement
outbox add``. A *profile* has the columns of the usual table of another project:

- ``debezium``: the table of Debezium's outbox event router: id (a UUID), aggregatetype,
  aggregateid, type, payload. The type and the id become headers, as the router can add them.
- ``eventuate``: the table ``message`` of Eventuate Tram: id, destination, headers, payload,
  published, with an index on (published, id). The header PARTITION_ID is the key. A newer variant
  has dbid for the order of rows (``--id-column dbid``).
- ``watermill``: a table of watermill-sql: offset, uuid, created_at, payload, metadata. The header
  of the uuid has the name that Watermill's Kafka publisher uses. Its queue schema also has acked
  (``--done acked=1``).
- ``masstransit``: the table ``OutboxMessage`` of MassTransit's bus outbox for Entity Framework:
  SequenceNumber, EnqueueTime, Headers, Body, MessageId, ContentType. Rows without an OutboxId
  belong to MassTransit's consumer outbox, and are not moved.

A row waits until it is *done*: deleted, or with another value in one column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Final

from escapement.errors import InvalidRequest
from escapement.storage.outbox.tables import OUTBOX

# For each unit of a due time, the factor and the divisor that make milliseconds of it. A datetime
# is read as microseconds.
DUE_UNITS: Final = {
    "datetime": (1, 1000),
    "s": (1000, 1),
    "ms": (1, 1),
    "ns": (1, 1_000_000),
}
# The value of a done column that stands for the present time.
NOW: Final = "now"
# The most columns that become headers.
MAX_HEADER_COLUMNS: Final = 64


@dataclass(frozen=True, slots=True)
class OutboxMapping:
    """A table whose rows become messages, and the parts of a message in its columns.

    Attributes:
      id_column: identifies a row. A unique index has this column alone.
      order_column: gives the order of rows; None: ``id_column``.
      topic: the topic of all messages, if there is no ``topic_column``.
      topic_prefix: precedes the value of ``topic_column``.
      key_header: the name of the header that has the key, if there is no ``key_column``.
      payload_column: None: the payload is the whole row, as a JSON object.
      size_column: has the size of the payload in bytes, if the table stores it.
      headers_column: has a JSON object.
      header_columns: pairs of a header's name and the column with its value.
      due_unit: one of ``DUE_UNITS``.
      action_column: makes a row a request to cancel or reschedule messages; only in our own table.
      done_column: gets ``done_value`` when a row is moved; None: the row is deleted.
      done_value: text, or ``NOW``.
      pending_value: the value of ``done_column`` in rows that wait; None: the column's default.
      not_null_column: rows that have NULL here are not moved.
    """

    table: str
    id_column: str = "id"
    order_column: str | None = None
    topic: str | None = None
    topic_column: str | None = None
    topic_prefix: str = ""
    key_column: str | None = None
    key_header: str | None = None
    payload_column: str | None = None
    size_column: str | None = None
    headers_column: str | None = None
    header_columns: tuple[tuple[str, str], ...] = ()
    due_column: str | None = None
    due_unit: str = "datetime"
    dedup_column: str | None = None
    priority_column: str | None = None
    action_column: str | None = None
    done_column: str | None = None
    done_value: str = ""
    pending_value: str | None = None
    not_null_column: str | None = None

    def to_json(self) -> str:
        """Return the mapping as text for the mapping table: its fields without the table."""
        defaults = {one.name: one.default for one in fields(self) if one.default is not MISSING}
        values = asdict(self)
        return json.dumps(
            {name: values[name] for name in defaults if values[name] != defaults[name]}
        )

    @classmethod
    def from_json(cls, table: str, text: str) -> OutboxMapping:
        """Return the mapping of a table from the text of the mapping table.

        Raises:
          InvalidRequest: if the text is not of this version.
        """
        try:
            read = json.loads(text)
            headers = tuple(
                (str(name), str(column)) for name, column in read.pop("header_columns", ())
            )
            if not all(isinstance(value, str) for value in read.values()):
                raise ValueError("a value is not a text")
            return cls(table, header_columns=headers, **read)
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidRequest(f"the mapping of table {table} cannot be read: {error}") from None


# The mapping of our own table.
OURS: Final = OutboxMapping(
    OUTBOX,
    topic_column="topic",
    key_column="key",
    payload_column="payload",
    size_column="payload_bytes",
    headers_column="headers",
    due_column="due_at",
    dedup_column="dedup_key",
    priority_column="priority",
    action_column="action",
)

# For each profile, the fields in which it differs from a mapping without any columns.
PROFILES: Final[Mapping[str, Mapping[str, Any]]] = {
    "custom": {},
    "debezium": {
        "topic_column": "aggregatetype",
        "key_column": "aggregateid",
        "payload_column": "payload",
        "header_columns": (("id", "id"), ("type", "type")),
    },
    "eventuate": {
        "topic_column": "destination",
        "key_header": "PARTITION_ID",
        "payload_column": "payload",
        "headers_column": "headers",
        "done_column": "published",
        "done_value": "1",
    },
    "watermill": {
        "id_column": "offset",
        "payload_column": "payload",
        "headers_column": "metadata",
        "header_columns": (("_watermill_message_uuid", "uuid"),),
    },
    "masstransit": {
        "id_column": "SequenceNumber",
        "payload_column": "Body",
        "headers_column": "Headers",
        "header_columns": (("MessageId", "MessageId"), ("ContentType", "ContentType")),
        "due_column": "EnqueueTime",
        "not_null_column": "OutboxId",
    },
}


def of_profile(profile: str, table: str) -> OutboxMapping:
    """Return the mapping of a table that has the usual columns of a profile."""
    return OutboxMapping(table, **PROFILES[profile])
