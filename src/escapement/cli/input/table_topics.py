"""The topics of message tables that commands name without their database."""

from __future__ import annotations

from escapement.client.broker import Broker
from escapement.errors import InvalidRequest


async def topic_of_table(broker: Broker, table: str) -> str:
    """Return the topic of the table with this name, in the only database that has one.

    Raises:
      InvalidRequest: if no database that the broker serves has such a table, or several have.
    """
    served = [row["table"] for row in await broker.admin("tables.list")]
    found = [topic for topic in served if topic.rpartition("/")[2] == table]
    if len(found) == 1:
        return str(found[0])
    why = f"have several: {', '.join(found)}" if found else "have none"
    raise InvalidRequest(
        f"Write the database of table {table}, such as shop.{table}. The databases that the broker"
        f" serves {why}."
    )
