"""An application with a database of its own, in which it sends and acknowledges messages.

It has an outbox, a table of acknowledgements, a table of their effects, and a message table. The
brokers serve the database. ``transacting.py`` and ``table_clients.py`` have its clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pymysql

from escapement.errors import AlreadyProcessed
from histories.history import History
from histories.table_rows import TableRows
from histories.transactions import Transactions
from support.tables.shops import Shop, comment

# A consumer keeps a row of the message table for at most this long.
_ROW_ACK_WAIT_S: Final = 3
_DIRECTIVES: Final = comment(
    ack_wait=_ROW_ACK_WAIT_S,
    max_backoff=_ROW_ACK_WAIT_S + 1,
    poller_interval=0.2,
    cache_size=50,
    message_cols="tenant_id|epoch|time_next",
)
# What a run with an application must have shown.
SHOWN: Final = (
    "sent in transactions",
    "rolled back",
    "processed in transactions",
    "rows inserted",
    "rows acknowledged",
)
Cursor = pymysql.cursors.Cursor


class Application:
    """The database of the application, and what its clients know.

    Args:
      directives: the COMMENT of the message table.
    """

    def __init__(self, shop: Shop, directives: str = _DIRECTIVES) -> None:
        self.shop = shop
        self.transactions = Transactions()
        self.table = ""  # the topic of the message table
        self._directives = directives

    @property
    def rows(self) -> TableRows:
        """The rows of the message table."""
        return self.transactions.rows

    def install(self) -> None:
        self.shop.install()
        self.shop.run("CREATE TABLE effects (subscription VARCHAR(20), message_offset BIGINT)")
        self.table = self.shop.create(comment=self._directives)

    def look(self, history: History) -> None:
        """Read the tables, and note the acknowledgements in transactions. Blocking.

        Raises:
          pymysql.err.MySQLError: if the database does not answer.
        """
        found = self.shop.run(
            "SELECT subscription, message_offset,"
            " TIMESTAMPDIFF(MICROSECOND, '1970-01-01', learned_at) DIV 1000 FROM escapement_acks"
        )
        for subscription, offset, learned_ms in found:
            course = subscription, offset
            self.transactions.acked.add(course)
            history.ack_sent.add(course)
            if learned_ms is not None:
                # The server cuts parts of a millisecond off.
                history.acked_s.setdefault(course, history.seconds(learned_ms + 1))
        self.transactions.unlearned = sum(learned_ms is None for *_, learned_ms in found)
        effects = self.shop.run("SELECT subscription, message_offset FROM effects")
        self.transactions.effects = Counter((name, offset) for name, offset in effects)
        rows = self.shop.run("SELECT tenant_id, epoch, time_acked IS NOT NULL FROM mails")
        self.rows.final = {number: (epoch, bool(is_acked)) for number, epoch, is_acked in rows}

    def note_epoch(self, number: int) -> None:
        """Note the epoch of an acknowledged row, which does not change any more. Blocking.

        Raises:
          pymysql.err.MySQLError: if the database does not answer.
        """
        sql = "SELECT epoch FROM mails WHERE tenant_id = %s"
        ((epoch,),) = self.shop.run(sql, number)
        self.rows.acked(number, epoch)


class Session:
    """A connection of the application, which is opened again after an error."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._connection: pymysql.Connection[Cursor] | None = None

    def transact(self, work: Callable[[Cursor], Any], *, commits: bool = True) -> bool | None:
        """Do work in a transaction, and commit it or roll it back. Blocking.

        Returns:
          Whether it is committed. None: COMMIT got no answer.

        Raises:
          AlreadyProcessed: as ``work`` does; the transaction is rolled back.
        """
        committing = False
        try:
            if self._connection is None:
                self._connection = self._shop.connect()
            with self._connection.cursor() as cursor:
                work(cursor)
            if committing := commits:
                self._connection.commit()
            else:
                self._connection.rollback()
            return commits
        except AlreadyProcessed:
            self.close()
            raise
        except pymysql.err.MySQLError:
            self.close()
            return None if committing else False

    def close(self) -> None:
        """Close the connection. The open transaction is rolled back."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            if connection.open:
                connection.close()
