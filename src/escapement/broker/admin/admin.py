"""The administrative operations (*verbs*), which `escapement admin` and clients call by name.

A verb is a function that checks its arguments and returns plain values (maps, lists, text,
integers), which can be shown as a table or as JSON. Times are Unix milliseconds and durations are
milliseconds; their names end in ``_ms``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from escapement.broker.access.audited import READS, recorded_verb
from escapement.broker.access.caller import Caller
from escapement.broker.access.needs import needs_of_verb
from escapement.broker.admin import (
    access,
    audit,
    bulk,
    cluster,
    dlq,
    findings,
    forecasts,
    grants,
    groups,
    inbox,
    jobs,
    lateness,
    messages,
    namespaces,
    overview,
    pauses,
    push,
    schedules,
    subscriptions,
    tables,
    tokens,
    topics,
)
from escapement.broker.admin.arguments import Arguments, Plain
from escapement.broker.admin.verb import Verb
from escapement.broker.broker import Broker
from escapement.broker.broker_stats import BrokerStats
from escapement.errors import EscapementError, InvalidRequest, NotFound, WrongBundle
from escapement.protocol.bundle_verbs import SOUGHT


class Admin:
    """The dispatcher that runs verbs on one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def carry_out(self, verb: str, arguments: Mapping[str, Any], caller: Caller) -> Plain:
        """Check the rights of the caller, run a verb and return its result.

        The audit log records a verb that changes something.

        Args:
          caller: its rights also decide what a listing shows.

        The answer to a verb that reads, and the news that something exists or does not exist, are
        from the memory of the broker. So they need a lease that has not expired until then. A verb
        that changes something checks the lease when it commits.

        Raises:
          AccessDenied: if the caller lacks a right that the verb needs.
          InvalidRequest: if the verb is unknown, or its arguments are wrong.
          LeaseLost: if the lease has expired, and the answer may be out of date.
        """
        # Another broker may know the name that a verb seeks.
        sought = verb in SOUGHT and self._broker.directory.count > 1
        return await self._broker.services.audit.carry_out(
            recorded_verb(verb, arguments, caller.origin),
            caller,
            lambda: caller.permit(needs_of_verb(verb, arguments)),
            lambda: self._run(verb, arguments, caller),
            (WrongBundle, NotFound) if sought else (WrongBundle,),
        )

    async def _run(self, verb: str, arguments: Mapping[str, Any], caller: Caller) -> Plain:
        function = VERBS.get(verb)
        if function is None:
            raise InvalidRequest(f"there is no verb {verb!r}; use one of {', '.join(VERBS)}")
        try:
            result = await function(self._broker, Arguments(verb, arguments, caller))
        except EscapementError as error:
            if (checked := self._broker.checked(error)) is not error:
                raise checked from error
            raise
        if verb in READS:
            self._broker.check_lease()
        return result


async def _stats(broker: Broker, given: Arguments) -> BrokerStats:
    given.end()
    if broker.bundle_id == 0:  # the log tables of all bundles are read once
        await broker.services.log_size.freshen()
    return broker.stats()


async def _update(broker: Broker, given: Arguments) -> BrokerStats:
    count = given.optional_number("table_parallelism")
    given.end()
    if count is None:
        raise InvalidRequest("broker.update needs 'table_parallelism'")
    await broker.set_table_parallelism(count)
    return broker.stats()


VERBS: Final[dict[str, Verb]] = {
    **namespaces.VERBS,
    **topics.VERBS,
    **messages.VERBS,
    **forecasts.VERBS,
    **subscriptions.VERBS,
    **lateness.VERBS,
    **overview.VERBS,
    **dlq.VERBS,
    **bulk.VERBS,
    **pauses.VERBS,
    **push.VERBS,
    **inbox.VERBS,
    **jobs.VERBS,
    **schedules.VERBS,
    **groups.VERBS,
    **tables.VERBS,
    **tokens.VERBS,
    **grants.VERBS,
    **access.VERBS,
    **cluster.VERBS,
    **audit.VERBS,
    "broker.stats": _stats,
    "broker.update": _update,
    **findings.VERBS,
}
