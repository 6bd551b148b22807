"""Every error that escapement raises on purpose, in one tree.

The errors are grouped by when they happen. Each class has a stable ``code``, which the
protocol carries and applications may compare, and ``retryable``, which is True if the same
request may succeed later without any change. Messages say what failed, why, and what to do.

These errors are for input, network and storage. A mistake in escapement itself is an
``AssertionError``.
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
    """Raised when a due time lies beyond the maximum delay of the broker, topic or namespace."""

    code = "delay_too_long"


class DelayTooShort(InvalidRequest):
    """Raised when a message has a shorter delay than its topic or namespace requires."""

    code = "delay_too_short"


class DelaysDisabled(EscapementError):
    """Raised when a message has a delivery time and its namespace has delays disabled."""

    code = "delays_disabled"


class NotOpened(InvalidRequest, AttributeError):
    """Raised when a client or consumer is used before its ``with`` block has opened it.

    It is also an ``AttributeError``, so that ``hasattr`` returns False.
    """

    code = "not_opened"


class NotFound(EscapementError):
    """Raised when a namespace, topic, subscription, message or schedule does not exist."""

    code = "not_found"


class AlreadyExists(EscapementError):
    """Raised when the namespace, topic, subscription or schedule to create exists already."""

    code = "already_exists"


class Conflict(EscapementError):
    """Raised when a request conflicts with existing state, such as with another consumer."""

    code = "conflict"


class GroupClosed(Conflict):
    """Raised when a published message names a closed message group. Its batch is not stored."""

    code = "group_closed"


class LimitExceeded(EscapementError):
    """Raised when a request exceeds a limit of the broker."""

    code = "limit_exceeded"


class AlreadyProcessed(EscapementError):
    """Raised when another transaction has acknowledged a message and applied its effects."""

    code = "already_processed"


class SequenceGap(EscapementError):
    """Raised for a published batch if the broker has not stored the producer's previous batch."""

    code = "sequence_gap"
    retryable = True


class ProducerFenced(EscapementError):
    """Raised by a producer when a newer producer of the same name has taken over."""

    code = "producer_fenced"


# -- access --------------------------------------------------------------------


class Unauthenticated(EscapementError):
    """Raised when a client has no token, or its token is mistyped, unknown, expired or revoked."""

    code = "unauthenticated"


class AccessDenied(EscapementError):
    """Raised when the client's role lacks a right. The message names the grant to add."""

    code = "access_denied"


# -- protocol and network ------------------------------------------------------


class ProtocolError(EscapementError):
    """The base class of protocol errors between the two ends of a connection."""

    code = "protocol_error"


class LocalProtocolError(ProtocolError):
    """Raised when our end of a connection tries to send a command that is not allowed."""

    code = "local_protocol_error"


class RemoteProtocolError(ProtocolError):
    """Raised when the other end of a connection sent bytes that the protocol does not allow."""

    code = "remote_protocol_error"


class Disconnected(EscapementError):
    """Raised when the broker cannot be reached or does not answer, or the connection is lost.

    A request that was sent may or may not have taken effect.
    """

    code = "disconnected"
    retryable = True


class NoOwner(Disconnected):
    """Raised when brokers answer, and none of them serves the topic's bundle at the moment.

    A bundle has no owner while it moves, and until the lease of a dead broker has expired. Clients
    also do not find the owner if it advertises an address at which they cannot reach it.
    """

    code = "no_owner"


class OtherDatabase(EscapementError):
    """Raised when a broker uses another database than the one that the client connected to first.

    The addresses of a client must be those of brokers on one database.
    """

    code = "other_database"


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
    """Raised inside the broker when the database's reply to a COMMIT was lost."""

    code = "outcome_unknown"


class SchemaError(StorageError):
    """Raised when a newer program, or another development version, made the database's tables."""

    code = "schema_error"


class MissingRight(StorageError):
    """Raised when the broker's user of the database lacks a right. The message says which."""

    code = "missing_right"


class UnfitDatabase(StorageError):
    """Raised at start when the database, as it is set up, cannot keep messages durably."""

    code = "unfit_database"


class TableRejected(StorageError):
    """Raised when a message table, as it is defined, cannot be served. The message says why."""

    code = "table_rejected"


class LeaseLost(StorageError):
    """Raised when another broker has taken the lease of the topic's bundle from this broker.

    Requests that read are refused with it as soon as the lease has expired, because another broker
    may have taken it.

    The client repeats requests that may safely take effect twice, such as ``cancel``,
    ``reschedule`` and ``run_now``, so an application gets this error only after
    ``request_timeout_s``. It gets it at once for requests that create, delete or move something,
    such as ``topics.create``. Whether such a request took effect is not known.
    """

    code = "lease_lost"
    retryable = True


class LeaseHeld(StorageError):
    """Raised at start when another broker, named in the message, has the lease of the database."""

    code = "lease_held"


class AddressTaken(StorageError):
    """Raised at start when another live broker has told clients the same address as its own."""

    code = "address_taken"


class DataDirectoryInUse(StorageError):
    """Raised at start when another process has locked the broker's data directory."""

    code = "data_directory_in_use"


class LogDamaged(StorageError):
    """Raised when a row of the log, of the cursors or of the journal is damaged or missing."""

    code = "log_damaged"


class LogForgotten(StorageError):
    """Raised when messages to read are no longer in the log, because they were finished."""

    code = "log_forgotten"


class InboxEntryDamaged(StorageError):
    """Raised when messages that a job left in the database's inbox table cannot be decoded.

    The broker keeps this inbox entry, and continues with the others.
    """

    code = "inbox_entry_damaged"


class StagingLost(StorageError):
    """Raised when the messages that a bulk job had stored for a later commit were deleted.

    The job may be run again.
    """

    code = "staging_lost"
    retryable = True


class IndexDamaged(StorageError):
    """Raised when a file of the delayed index fails its checksum. The broker rebuilds the index."""

    code = "index_damaged"


# -- load ----------------------------------------------------------------------


class Busy(EscapementError):
    """Raised when the broker has reached one of its limits for the moment. Retry later."""

    code = "busy"
    retryable = True


class WrongBundle(EscapementError):
    """Raised when a topic belongs to a bundle that another broker owns. Ask that broker.

    Attributes:
      bundle: the id of the bundle; None if only the message says it.
    """

    code = "wrong_bundle"
    retryable = True

    def __init__(self, message: str, bundle: int | None = None) -> None:
        super().__init__(message)
        self.bundle = bundle


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
    """Return an error of the class with this ``code``, or a plain ``EscapementError``."""
    return _by_code(EscapementError).get(code, EscapementError)(message)
