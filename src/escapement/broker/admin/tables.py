"""The administrative operations (*verbs*) on message tables: list, acknowledge rows, poll.

The verb that polls outboxes is here too: like a poll of a table, it is sent after a commit.
"""

from __future__ import annotations

from typing import Final

from escapement.broker.admin.arguments import Arguments, Plain
from escapement.broker.admin.verb import Verb
from escapement.broker.broker import Broker

# The most ids in one request. A request of the wire protocol has at most twice as many items.
_MOST_IDS: Final = 10_000


async def _list_tables(broker: Broker, given: Arguments) -> Plain:
    given.end()
    seen = given.caller.coverage("peek")
    return [row for row in broker.services.tables.listed() if row["table"] in seen]


async def _acknowledge(broker: Broker, given: Arguments) -> Plain:
    topic, ids = given.text("topic"), given.row_ids("ids", _MOST_IDS)
    given.end()
    return {"acknowledged": await broker.services.tables.acknowledge(topic, ids)}


async def _poll(broker: Broker, given: Arguments) -> Plain:
    topic = given.text("topic")
    given.end()
    tables = broker.services.tables
    name = await tables.check(topic)
    tables.hint(name.database, name.name)
    return {}


async def _poll_outboxes(broker: Broker, given: Arguments) -> Plain:
    given.end()
    broker.services.relays.hint_all()
    return {}


VERBS: Final[dict[str, Verb]] = {
    "tables.list": _list_tables,
    "tables.ack": _acknowledge,
    "tables.poll": _poll,
    "outboxes.poll": _poll_outboxes,
}
