"""escapement: a message broker that delivers each message when it is due, with MySQL as its log.

Start with ``connect``, or with ``escapement.sync.connect`` in blocking code. Classes that need
numpy or trio are imported when they are first used. So ``escapement --help``, which also imports
this package, does not load these libraries.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from escapement.errors import (
    AccessDenied,
    AlreadyExists,
    AlreadyProcessed,
    BacklogFull,
    Busy,
    Conflict,
    DelaysDisabled,
    DelayTooLong,
    DelayTooShort,
    Disconnected,
    EscapementError,
    GroupClosed,
    InvalidRequest,
    LimitExceeded,
    NaiveDatetime,
    NotFound,
    NotOpened,
    ProducerFenced,
    ProtocolError,
    ShuttingDown,
    StorageReadOnly,
    StorageUnavailable,
    TableRejected,
    Unauthenticated,
)

if TYPE_CHECKING:
    from escapement.client.administration.bulk import Bulk, BulkChange, BulkPreview
    from escapement.client.administration.forecast import Forecast, NamespaceForecast
    from escapement.client.administration.message_history import MessageHistory, SubscriptionStatus
    from escapement.client.administration.outcome import Outcome, Outcomes
    from escapement.client.administration.peeking import Upcoming
    from escapement.client.administration.reading import Page, PublishedMessage
    from escapement.client.administration.schedules import Schedule, Schedules
    from escapement.client.broker import Broker
    from escapement.client.connect import connect
    from escapement.client.consuming.batch import Batch, Message
    from escapement.client.consuming.inbox import Inbox
    from escapement.client.producing.builder import MessageBuilder
    from escapement.client.producing.groups import FollowUp, Group, GroupCompletion, Groups
    from escapement.client.producing.producer import Producer
    from escapement.client.producing.receipt import Pending, Receipt, Receipts
    from escapement.client.producing.replace import Replace
    from escapement.client.selection import Selection
    from escapement.client.serializers import JSON, MSGPACK, Serializer
    from escapement.client.settings import Settings
    from escapement.client.tracing.tracing import Tracing
    from escapement.field import Field
    from escapement.message import Blobs, MessageBatch, MessageId, Times
    from escapement.protocol.amend_status import AmendStatus
    from escapement.traits import slot_of
else:
    _HOMES: Final = {
        "escapement.client.consuming.batch": ("Batch", "Message"),
        "escapement.client.broker": ("Broker",),
        "escapement.client.connect": ("connect",),
        "escapement.client.producing.groups": ("FollowUp", "Group", "GroupCompletion", "Groups"),
        "escapement.client.consuming.inbox": ("Inbox",),
        "escapement.client.administration.forecast": ("Forecast", "NamespaceForecast"),
        "escapement.client.administration.message_history": (
            "MessageHistory",
            "SubscriptionStatus",
        ),
        "escapement.client.administration.outcome": ("Outcome", "Outcomes"),
        "escapement.client.administration.peeking": ("Upcoming",),
        "escapement.client.administration.reading": ("Page", "PublishedMessage"),
        "escapement.client.producing.builder": ("MessageBuilder",),
        "escapement.client.producing.producer": ("Producer",),
        "escapement.client.producing.receipt": ("Pending", "Receipt", "Receipts"),
        "escapement.client.producing.replace": ("Replace",),
        "escapement.client.administration.bulk": ("Bulk", "BulkChange", "BulkPreview"),
        "escapement.client.administration.schedules": ("Schedule", "Schedules"),
        "escapement.client.selection": ("Selection",),
        "escapement.client.serializers": ("JSON", "MSGPACK", "Serializer"),
        "escapement.client.settings": ("Settings",),
        "escapement.client.tracing.tracing": ("Tracing",),
        "escapement.field": ("Field",),
        "escapement.message": ("Blobs", "MessageBatch", "MessageId", "Times"),
        "escapement.protocol.amend_status": ("AmendStatus",),
        "escapement.traits": ("slot_of",),
    }
    _HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}

    def __getattr__(name: str) -> Any:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(home), name)
        return value


def __dir__() -> list[str]:
    """Return the public names, of which most are imported when they are first used."""
    return sorted(__all__)


__all__ = [
    "JSON",
    "MSGPACK",
    "AccessDenied",
    "AlreadyExists",
    "AlreadyProcessed",
    "AmendStatus",
    "BacklogFull",
    "Batch",
    "Blobs",
    "Broker",
    "Bulk",
    "BulkChange",
    "BulkPreview",
    "Busy",
    "Conflict",
    "DelayTooLong",
    "DelayTooShort",
    "DelaysDisabled",
    "Disconnected",
    "EscapementError",
    "Field",
    "FollowUp",
    "Forecast",
    "Group",
    "GroupClosed",
    "GroupCompletion",
    "Groups",
    "Inbox",
    "InvalidRequest",
    "LimitExceeded",
    "Message",
    "MessageBatch",
    "MessageBuilder",
    "MessageHistory",
    "MessageId",
    "NaiveDatetime",
    "NamespaceForecast",
    "NotFound",
    "NotOpened",
    "Outcome",
    "Outcomes",
    "Page",
    "Pending",
    "Producer",
    "ProducerFenced",
    "ProtocolError",
    "PublishedMessage",
    "Receipt",
    "Receipts",
    "Replace",
    "Schedule",
    "Schedules",
    "Selection",
    "Serializer",
    "Settings",
    "ShuttingDown",
    "StorageReadOnly",
    "StorageUnavailable",
    "SubscriptionStatus",
    "TableRejected",
    "Times",
    "Tracing",
    "Unauthenticated",
    "Upcoming",
    "connect",
    "slot_of",
]
