"""escapement: a delayed-delivery message broker with MySQL as its durable log.

This is the package's face: ``connect`` and what it leads to. The blocking twin is
``escapement.sync.connect``.
"""

from escapement.client.batch import Batch, Message
from escapement.client.broker import Broker, connect
from escapement.client.inbox import Inbox
from escapement.client.producer import Producer
from escapement.client.receipt import Pending, Receipt, Receipts
from escapement.client.serializers import JSON, MSGPACK, Serializer
from escapement.client.settings import Settings
from escapement.errors import (
    AlreadyExists,
    Busy,
    Conflict,
    DelaysDisabled,
    DelayTooLong,
    Disconnected,
    EscapementError,
    InvalidRequest,
    LimitExceeded,
    NaiveDatetime,
    NotFound,
    ProducerFenced,
    ProtocolError,
    ShuttingDown,
    StorageReadOnly,
    StorageUnavailable,
)
from escapement.message import Blobs, MessageBatch, MessageId, Times

__all__ = [
    "JSON",
    "MSGPACK",
    "AlreadyExists",
    "Batch",
    "Blobs",
    "Broker",
    "Busy",
    "Conflict",
    "DelayTooLong",
    "DelaysDisabled",
    "Disconnected",
    "EscapementError",
    "Inbox",
    "InvalidRequest",
    "LimitExceeded",
    "Message",
    "MessageBatch",
    "MessageId",
    "NaiveDatetime",
    "NotFound",
    "Pending",
    "Producer",
    "ProducerFenced",
    "ProtocolError",
    "Receipt",
    "Receipts",
    "Serializer",
    "Settings",
    "ShuttingDown",
    "StorageReadOnly",
    "StorageUnavailable",
    "Times",
    "connect",
]
