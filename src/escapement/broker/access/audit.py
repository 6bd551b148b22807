"""The recorder of the audit log: it stores each action before it is carried out.

The outcome is added afterwards. If the broker dies in between, the row has no outcome, and the
action may have taken effect or not. If the row cannot be stored, the action is refused. So no
change lacks its row.

A client without the right that it needs changes nothing, but could fill the table with refused
requests. So at most ``MAX_REFUSALS`` of them are stored in a minute.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from escapement.broker.access.audited import Request
from escapement.broker.access.caller import Caller
from escapement.broker.registry.changes import Changes
from escapement.clock import Clock
from escapement.errors import AccessDenied, EscapementError, WrongBundle
from escapement.event_log import EventLog
from escapement.storage import audit_log
from escapement.storage.audit_log import DONE, AuditedAction
from escapement.storage.engine.base import Connection

T = TypeVar("T")

_log = EventLog(__name__)

# How many refusals for lack of a right a broker stores in a minute. It logs that there were more.
MAX_REFUSALS: Final = 100
_MINUTE_MS: Final = 60_000


class Audit:
    """The recorder of the actions that one broker carries out.

    Args:
      changes: makes rows durable.
      bundle_id: the bundle of the broker.
      broker: the name of the broker.
    """

    def __init__(self, changes: Changes, clock: Clock, bundle_id: int, broker: str) -> None:
        self._changes = changes
        self._clock = clock
        self._bundle_id = bundle_id
        self._broker = broker
        self._minute_ends_ms = 0  # by the monotonic clock
        self._refusals = 0  # in this minute

    async def carry_out(
        self,
        request: Request | None,
        caller: Caller,
        permit: Callable[[], Awaitable[None]],
        work: Callable[[], Awaitable[T]],
        elsewhere: tuple[type[EscapementError], ...] = (WrongBundle,),
    ) -> T:
        """Check the rights of a request, carry it out, and return its result.

        Args:
          request: what to record of the request; None: nothing.
          permit: raises ``AccessDenied`` unless the caller may make the request.
          work: carries the request out.
          elsewhere: the errors of a request that the client sends to another broker, which then
            records it.

        Raises:
          StorageError: if the action cannot be recorded. It was not carried out then.
        """
        if request is None:
            await permit()
            return await work()
        try:
            await permit()
        except AccessDenied as error:
            await self._refused(request, caller, error)
            raise
        id = await self._changes.durably(self._entry(request, caller))
        try:
            result = await work()
        except elsewhere:
            await self._add(lambda connection: audit_log.withdraw(connection, id))
            raise
        except EscapementError as error:
            code = error.code
            await self._add(lambda connection: audit_log.end(connection, id, code))
            raise
        await self._add(lambda connection: audit_log.end(connection, id, DONE))
        return result

    def _entry(
        self, request: Request, caller: Caller, outcome: str = ""
    ) -> Callable[[Connection], int]:
        action = AuditedAction(
            self._clock.now_ms(),
            self._bundle_id,
            self._broker,
            caller.role or "",
            caller.origin.peer,
            caller.origin.client,
            *request,
        )
        return lambda connection: audit_log.enter(connection, action, outcome)

    async def _add(self, statement: Callable[[Connection], object]) -> None:
        """Change the row of an action that has ended. If that fails, its outcome stays unknown."""
        try:
            await self._changes.durably(statement)
        except EscapementError as error:
            _log.warning(
                "audit.outcome_unknown",
                "the audit log lacks the outcome of an action, because it could not be written: %s",
                error,
            )

    async def _refused(self, request: Request, caller: Caller, error: AccessDenied) -> None:
        """Store that a caller lacks a right, unless too many refusals were stored already."""
        now_ms = self._clock.lease_ms()
        if now_ms >= self._minute_ends_ms:
            self._minute_ends_ms = now_ms + _MINUTE_MS
            self._refusals = 0
        self._refusals += 1
        if self._refusals <= MAX_REFUSALS:
            entry = self._entry(request, caller, error.code)
            await self._add(entry)
        elif self._refusals == MAX_REFUSALS + 1:
            _log.warning(
                "audit.refusals_left_out",
                "the audit log leaves out further refused requests of this minute, after %d; the"
                " last was %s by role %s",
                MAX_REFUSALS,
                request.verb,
                caller.role,
                role=caller.role,
            )
