"""The error reply to a request."""

from __future__ import annotations

from dataclasses import dataclass

from escapement.errors import EscapementError, from_code
from escapement.protocol.commands.command import Command, command
from escapement.protocol.fields import Boolean, Code, CountOrNone, Explanation, OptionalId
from escapement.protocol.limits import MAX_MESSAGE_CHARS


@command(6, "broker")
@dataclass(frozen=True, slots=True)
class Refused(Command):
    """A refusal of a request, with the reason. The request had no effect.

    It answers the request ``request_id``, or the Publish of ``producer_id`` that begins at
    ``sequence``. Without either it refuses the connection, which then ends.
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
        """Return a refusal with the code and the message of ``error``; truncate the message."""
        message = str(error)[:MAX_MESSAGE_CHARS]
        return cls(request_id, producer_id, sequence, error.code, message, error.retryable)

    def error(self) -> EscapementError:
        """Return the error of this command, as an exception to raise."""
        return carried(self.code, self.message, self.retryable)


def carried(code: str, message: str, retryable: bool) -> EscapementError:
    """Return the error that the other side sent, with its own ``retryable``.

    An unknown code gives an ``EscapementError`` with the message.
    """
    error = from_code(code, message)
    if error.retryable != retryable:
        vars(error)["retryable"] = retryable
    return error
