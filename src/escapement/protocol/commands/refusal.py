"""Commands that contain an error: their base class, and the refusal of a request."""

from __future__ import annotations

from escapement.errors import EscapementError, from_code
from escapement.protocol.commands.command import Command, command
from escapement.protocol.fields import Boolean, Code, CountOrNone, Explanation, OptionalId
from escapement.protocol.limits import MAX_MESSAGE_CHARS


class ErrorCommand(Command):
    """A command whose last fields, ``code``, ``message`` and ``retryable``, describe an error."""

    __slots__ = ()
    code: str
    message: str
    retryable: bool

    def error(self) -> EscapementError:
        """Return the error that the other side sent.

        Its class is that of ``code``, or ``EscapementError`` for an unknown code. ``retryable`` of
        the error is the received one, whatever its class says.
        """
        error = from_code(self.code, self.message)
        if error.retryable != self.retryable:
            vars(error)["retryable"] = self.retryable
        return error


def error_fields(error: EscapementError) -> tuple[str, str, bool]:
    """Return ``error`` as the last fields of an ``ErrorCommand``. A long message is truncated."""
    return error.code, str(error)[:MAX_MESSAGE_CHARS], error.retryable


@command(6, "broker")
class Refused(ErrorCommand):
    """A refusal of a request, which had no effect, with the error that is the reason.

    It answers the request ``request_id``, or the Publish of ``producer_id`` that begins at
    ``sequence``. If both ids are 0, it refuses the connection, which then ends.
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
        """Return the refusal of a request, a Publish or a connection because of ``error``."""
        return cls(request_id, producer_id, sequence, *error_fields(error))
