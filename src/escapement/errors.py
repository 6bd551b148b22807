"""Every error that escapement raises on purpose, in one tree.

The errors are grouped by when they happen. Each class has a stable ``code``, which the
protocol carries and applications may compare, and ``retryable``, which is True if the same
request may succeed later without any change. Messages say what failed, why, and what to do.

These errors are for input, network and storage. Mistakes in escapement itself are
``assert``.
"""

from __future__ import annotations

from typing import ClassVar


class EscapementError(Exception):
    """The base class of all errors of escapement."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False


# -- requests ------------------------------------------------------------------


class InvalidRequest(EscapementError):
    """Raised when an argument is not valid: a bad name, a negative delay."""

    code = "invalid_request"


class NaiveDatetime(InvalidRequest):
    """Raised when a datetime has no time zone."""

    code = "naive_datetime"


class DelayTooLong(InvalidRequest):
    """Raised when a delivery time lies beyond the broker's maximum delay."""

    code = "delay_too_long"


class DelaysDisabled(EscapementError):
    """Raised when a message has a delivery time and its namespace has delays disabled."""

    code = "delays_disabled"


class NotFound(EscapementError):
    """Raised when a namespace, topic, subscription, message or schedule does not exist."""

    code = "not_found"


class AlreadyExists(EscapementError):
    """Raised when the object to create exists already."""

    code = "already_exists"


class Conflict(EscapementError):
    """Raised when the request conflicts with existing state, such as another consumer."""

    code = "conflict"


class GroupClosed(Conflict):
    """Raised when a message names a closed group. Nothing of its batch is stored."""

    code = "group_closed"


class LimitExceeded(EscapementError):
    """Raised when a request exceeds a limit of the broker."""

    code = "limit_exceeded"


class SequenceGap(EscapementError):
    """Raised when the broker has not stored the producer's message before this batch."""

    code = "sequence_gap"
    retryable = True


class ProducerFenced(EscapementError):
    """Raised when a newer producer of the same name has taken over."""

    code = "producer_fenced"


# -- protocol and network ------------------------------------------------------


class ProtocolError(EscapementError):
    """The base class of protocol errors between the two ends of a connection."""

    code = "protocol_error"


class LocalProtocolError(ProtocolError):
    """Raised when this side tries to send something that the protocol does not allow."""

    code = "local_protocol_error"


class RemoteProtocolError(ProtocolError):
    """Raised when the other side sent something that the protocol does not allow."""

    code = "remote_protocol_error"


class Disconnected(EscapementError):
    """Raised when the connection is lost and the outcome of the request is unknown."""

    code = "disconnected"
    retryable = True


# -- storage -------------------------------------------------------------------


class StorageError(EscapementError):
    """The base class of errors of the database and the disk."""

    code = "storage_error"


class StorageUnavailable(StorageError):
    """Raised when the database cannot be reached. Nothing was made durable."""

    code = "storage_unavailable"
    retryable = True


class StorageReadOnly(StorageUnavailable):
    """Raised when the database accepts reads but rejects writes."""

    code = "storage_read_only"


class OutcomeUnknown(StorageUnavailable):
    """Raised inside the commit pipeline when the reply to a COMMIT was lost."""

    code = "outcome_unknown"


class SchemaError(StorageError):
    """Raised at start when the schema is newer than this program, or was altered."""

    code = "schema_error"


class UnfitDatabase(StorageError):
    """Raised at start when the database lacks a property that durability needs."""

    code = "unfit_database"


class LeaseLost(StorageError):
    """Raised when another broker has taken the lease of this one."""

    code = "lease_lost"
    retryable = True


class LeaseHeld(StorageError):
    """Raised at start when another broker, named in the message, holds the lease."""

    code = "lease_held"


class DataDirectoryInUse(StorageError):
    """Raised at start when another process holds the lock of the data directory."""

    code = "data_directory_in_use"


class LogDamaged(StorageError):
    """Raised when a row of the log, the cursors or the journal is damaged or missing."""

    code = "log_damaged"


class LogForgotten(StorageError):
    """Raised when the log no longer has the messages to read."""

    code = "log_forgotten"


class InboxEntryDamaged(StorageError):
    """Raised when an inbox entry does not decode. It is held; the other entries continue."""

    code = "letter_damaged"


class StagingLost(StorageError):
    """Raised when staged batches of a bulk job were discarded. The job may be run again."""

    code = "staging_lost"
    retryable = True


class IndexDamaged(StorageError):
    """Raised when a segment or the manifest fails its checksum. The index is rebuilt."""

    code = "index_damaged"


# -- load ----------------------------------------------------------------------


class Busy(EscapementError):
    """Raised when the broker has reached a limit for now. Retry later."""

    code = "busy"
    retryable = True


class BacklogFull(EscapementError):
    """Raised when the backlog of a topic is full and publishing to it is refused for now."""

    code = "backlog_full"
    retryable = True


class ShuttingDown(EscapementError):
    """Raised when the broker is stopping and accepts no new requests."""

    code = "shutting_down"
    retryable = True


def _by_code(root: type[EscapementError]) -> dict[str, type[EscapementError]]:
    found = {root.code: root}
    for kind in root.__subclasses__():
        found.update(_by_code(kind))
    return found


def from_code(code: str, message: str) -> EscapementError:
    """Return the error with a code, or an ``EscapementError`` if the code is unknown."""
    return _by_code(EscapementError).get(code, EscapementError)(message)
