"""Every error escapement raises on purpose, in one tree.

Grouped by when they happen. Each carries a stable ``code`` (what travels on the
wire and what an application may switch on) and ``retryable`` (whether the same
request may succeed later without anyone changing anything). Messages say what
happened, to what, and what to do about it.

Our own mistakes are ``assert``; these are for input, for the network and for
storage.
"""

from __future__ import annotations

from typing import ClassVar


class EscapementError(Exception):
    """Root of all of them."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False


# -- what a caller asked for ---------------------------------------------------


class InvalidRequest(EscapementError):
    """Is raised when an argument cannot be meant: a bad name, a negative delay."""

    code = "invalid_request"


class NaiveDatetime(InvalidRequest):
    """Is raised when a datetime without a time zone is given as a delivery time."""

    code = "naive_datetime"


class DelayTooLong(InvalidRequest):
    """Is raised when a delivery time lies past the broker's maximum delay."""

    code = "delay_too_long"


class DelaysDisabled(EscapementError):
    """Is raised when a time is given in a namespace where delays are disabled."""

    code = "delays_disabled"


class NotFound(EscapementError):
    """Is raised when a namespace, topic or subscription does not exist."""

    code = "not_found"


class AlreadyExists(EscapementError):
    """Is raised when what is to be created is there already."""

    code = "already_exists"


class Conflict(EscapementError):
    """Is raised when what exists does not allow the request (type, busy consumer)."""

    code = "conflict"


class GroupClosed(Conflict):
    """Is raised when a message names a group that is closed; nothing of its batch is stored."""

    code = "group_closed"


class LimitExceeded(EscapementError):
    """Is raised when a request is larger than a named limit of the broker."""

    code = "limit_exceeded"


class SequenceGap(EscapementError):
    """Is raised when a batch follows a message of its producer that is not stored."""

    code = "sequence_gap"
    retryable = True


class ProducerFenced(EscapementError):
    """Is raised when a newer producer of the same name has taken over."""

    code = "producer_fenced"


# -- the wire ------------------------------------------------------------------


class ProtocolError(EscapementError):
    """Is the root of what goes wrong between two ends of a connection."""

    code = "protocol_error"


class LocalProtocolError(ProtocolError):
    """Is raised when *we* try to send what the protocol does not allow now."""

    code = "local_protocol_error"


class RemoteProtocolError(ProtocolError):
    """Is raised when the other side sent what the protocol does not allow."""

    code = "remote_protocol_error"


class Disconnected(EscapementError):
    """Is raised when the connection is gone and the request's outcome is unknown."""

    code = "disconnected"
    retryable = True


# -- storage -------------------------------------------------------------------


class StorageError(EscapementError):
    """Is the root of what the database or the disk refuses."""

    code = "storage_error"


class StorageUnavailable(StorageError):
    """Is raised when the database cannot be reached; nothing was made durable."""

    code = "storage_unavailable"
    retryable = True


class StorageReadOnly(StorageUnavailable):
    """Is raised when the database takes reads but no writes."""

    code = "storage_read_only"


class OutcomeUnknown(StorageUnavailable):
    """Is raised inside the commit pipeline when a COMMIT's reply was lost."""

    code = "outcome_unknown"


class SchemaError(StorageError):
    """Is raised at start when the schema is newer than this program, or altered."""

    code = "schema_error"


class UnfitDatabase(StorageError):
    """Is raised at start when the database lacks what durability needs."""

    code = "unfit_database"


class LeaseLost(StorageError):
    """Is raised when another broker owns what this one is writing to."""

    code = "lease_lost"
    retryable = True


class LeaseHeld(StorageError):
    """Is raised at start when another broker holds the lease; names that broker."""

    code = "lease_held"


class DataDirectoryInUse(StorageError):
    """Is raised at start when another process holds the data directory's lock."""

    code = "data_directory_in_use"


class LogDamaged(StorageError):
    """Is raised when a row of the log, of cursors or of the journal is damaged, or is missing."""

    code = "log_damaged"


class LogForgotten(StorageError):
    """Is raised when messages that were to be read are in the log no more."""

    code = "log_forgotten"


class LetterDamaged(StorageError):
    """Is raised when a letter of the inbox does not decode; it is held, the rest goes on."""

    code = "letter_damaged"


class StagingLost(StorageError):
    """Is raised when what a bulk write had staged was given up; the write may be run again."""

    code = "staging_lost"
    retryable = True


class IndexDamaged(StorageError):
    """Is raised when a segment or the manifest fails its checksum; the index is rebuilt."""

    code = "index_damaged"


# -- load ----------------------------------------------------------------------


class Busy(EscapementError):
    """Is raised when a bound is met that time will relieve."""

    code = "busy"
    retryable = True


class BacklogFull(EscapementError):
    """Is raised when so much of a topic waits that no more may be published now."""

    code = "backlog_full"
    retryable = True


class ShuttingDown(EscapementError):
    """Is raised when the broker is stopping and takes no new work."""

    code = "shutting_down"
    retryable = True


def _by_code(root: type[EscapementError]) -> dict[str, type[EscapementError]]:
    found = {root.code: root}
    for kind in root.__subclasses__():
        found.update(_by_code(kind))
    return found


def from_code(code: str, message: str) -> EscapementError:
    """The error that a peer named by ``code``; the root class if we do not know it."""
    return _by_code(EscapementError).get(code, EscapementError)(message)
