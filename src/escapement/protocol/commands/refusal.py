"""What was asked did not happen: an error on its way to who asked."""

from __future__ import annotations

from dataclasses import dataclass

from escapement.errors import EscapementError, from_code
from escapement.protocol.commands.command import Command, command
from escapement.protocol.fields import Boolean, Code, CountOrNone, Explanation, OptionalId
from escapement.protocol.limits import MAX_MESSAGE_CHARS


@command(6, "broker")
@dataclass(frozen=True, slots=True)
class Refused(Command):
    """What was asked did not happen, and why.

    It answers the request ``request_id``, or the Publish of ``producer_id`` that began
    at ``sequence``; with neither it is about the connection, which then ends.
    """

    request_id: OptionalId
    producer_id: OptionalId
    sequence: CountOrNone
    code: Code
    message: Explanation
    retryable: Boolean

    @classmethod
    def because(
        cls,
        error: EscapementError,
        *,
        request_id: int = 0,
        producer_id: int = 0,
        sequence: int = -1,
    ) -> Refused:
        """The refusal that carries ``error``; a long message is cut."""
        message = str(error)[:MAX_MESSAGE_CHARS]
        return cls(request_id, producer_id, sequence, error.code, message, error.retryable)

    def error(self) -> EscapementError:
        """The error it carries, as an exception to raise."""
        return carried(self.code, self.message, self.retryable)


def carried(code: str, message: str, retryable: bool) -> EscapementError:
    """The error a peer named; of a code that we do not know, it keeps what it said."""
    error = from_code(code, message)
    if error.retryable != retryable:
        vars(error)["retryable"] = retryable
    return error
