"""The administrative operations (*verbs*), which `escapement admin` and clients call by name.

A verb is a function that checks its arguments and returns plain values (maps, lists, text,
integers), which can be shown as a table or as JSON. Times are Unix milliseconds and durations are
milliseconds; their names end in ``_ms``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from escapement.broker.access.caller import Caller
from escapement.broker.access.needs import VERB_NEEDS
from escapement.broker.admin import (
    bulk,
    cluster,
    dlq,
    grants,
    groups,
    inbox,
    jobs,
    messages,
    namespaces,
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
from escapement.errors import EscapementError, InvalidRequest

# Verbs that need no other right than to peek change nothing. Two others need more.
# ``broker.stats`` and ``cluster.status`` tell about processes, also during an outage.
READS: Final = frozenset(
    verb
    for verb, rights in VERB_NEEDS.items()
    if rights and all(right.action == "peek" for right in rights)
) - {"broker.stats", "cluster.status"} | {"tokens.list", "grants.list"}


class Admin:
    """The dispatcher that runs verbs on one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def carry_out(self, verb: str, arguments: Mapping[str, Any], caller: Caller) -> Plain:
        """Run a verb and return its result. The caller's rights have been checked.

        Args:
          caller: decides what a listing shows.

        The answer to a verb that reads, and the news that something exists or does not exist, are
        from the memory of the broker. So they need a lease that has not expired until then. A verb
        that changes something checks the lease when it commits.

        Raises:
          InvalidRequest: if the verb is unknown, or its arguments are wrong.
          LeaseLost: if the lease has expired, and the answer may be out of date.
        """
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
    **subscriptions.VERBS,
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
    **cluster.VERBS,
    "broker.stats": _stats,
    "broker.update": _update,
}
