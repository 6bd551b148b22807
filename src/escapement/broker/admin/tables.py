"""The administrative operations (*verbs*) on message tables: list, acknowledge rows, poll.

The verb that polls outboxes is here too: like a poll of a table, it is sent after a commit.
"""

from __future__ import annotations

from typing import Final, TypedDict

from escapement.broker.admin.arguments import Arguments
from escapement.broker.admin.result import Nothing
from escapement.broker.admin.verb import Verb
from escapement.broker.broker import Broker
from escapement.broker.tables.listed_table import ListedTable

# The most ids in one request. A request of the wire protocol has at most twice as many items.
_MOST_IDS: Final = 10_000


class Acknowledged(TypedDict):
    """How many rows were not acknowledged before."""

    acknowledged: int


async def _list_tables(broker: Broker, given: Arguments) -> list[ListedTable]:
    given.end()
    seen = given.caller.coverage("peek")
    return [row for row in broker.services.tables.listed() if row["table"] in seen]


async def _acknowledge(broker: Broker, given: Arguments) -> Acknowledged:
    topic, ids = given.text("topic"), given.row_ids("ids", _MOST_IDS)
    given.end()
    return {"acknowledged": await broker.services.tables.acknowledge(topic, ids)}


async def _poll(broker: Broker, given: Arguments) -> Nothing:
    topic = given.text("topic")
    given.end()
    tables = broker.services.tables
    name = await tables.check(topic)
    tables.hint(name.database, name.name)
    return {}


async def _poll_outboxes(broker: Broker, given: Arguments) -> Nothing:
    given.end()
    broker.services.relays.hint_all()
    return {}


VERBS: Final[dict[str, Verb]] = {
    "tables.list": _list_tables,
    "tables.ack": _acknowledge,
    "tables.poll": _poll,
    "outboxes.poll": _poll_outboxes,
}
