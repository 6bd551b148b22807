"""The CREATE TABLE of a message table, to run or to print."""

from __future__ import annotations

from typing import Final

from escapement.errors import AlreadyExists, TableRejected
from escapement.identifier import quoted
from escapement.names import check_name
from escapement.storage.engine.base import Connection
from escapement.tables.columns import DEFAULT_PRIORITY
from escapement.tables.directives import Directives, Spelling, check_directives, write_comment

# The longest name of a table that MySQL and MariaDB accept, in characters.
MAX_TABLE_NAME: Final = 64

_CREATE: Final = """\
CREATE TABLE {name} (
  `id` BIGINT NOT NULL AUTO_INCREMENT COMMENT 'unique; generated unless given',
  `priority` TINYINT NOT NULL DEFAULT {priority} COMMENT 'lower numbers are sent first',
  `epoch` BIGINT NOT NULL DEFAULT 0 COMMENT 'how often the message was sent',
  `time_next` BIGINT DEFAULT 0 COMMENT 'send at this time, in nanoseconds since 1970',
  `time_acked` BIGINT DEFAULT NULL COMMENT 'acknowledged at this time; then time_next is NULL',
  `message` JSON,
  PRIMARY KEY (`id`),
  INDEX `poller_idx` (`time_acked`, `priority`, `time_next` DESC)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4
  COMMENT='{comment}'"""


def create_statement(table: str, directives: Directives, spelling: Spelling = "escapement") -> str:
    """Return the CREATE TABLE of a message table, without a semicolon.

    The application may add columns, and change the type of ``message`` and of ``id``.

    Raises:
      InvalidRequest: if the name cannot be the name of a topic.
      TableRejected: if the name is too long for a table, or a directive is out of bounds.
    """
    check_name("topic", table)
    if len(table) > MAX_TABLE_NAME:
        raise TableRejected(
            f"Table {table} has a name of {len(table)} characters. Choose one of at most"
            f" {MAX_TABLE_NAME}."
        )
    check_directives(directives, table)
    return _CREATE.format(
        name=quoted(table),
        priority=DEFAULT_PRIORITY,
        # No directive has a quote or a backslash, so the text needs no escapes.
        comment=write_comment(directives, spelling),
    )


def create_table(
    connection: Connection, table: str, directives: Directives, spelling: Spelling = "escapement"
) -> None:
    """Create a message table in the connection's database; blocking.

    Raises:
      AlreadyExists: if the database has a table of this name.
      InvalidRequest, TableRejected: see ``create_statement``.
    """
    statement = create_statement(table, directives, spelling)
    existing = connection.execute(
        "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()"
        " AND TABLE_NAME = ?",
        (table,),
    )
    if existing.rows:
        raise AlreadyExists(
            f"Table {table} exists already. Choose another name, or make it a message table with"
            f" ALTER TABLE {quoted(table)} COMMENT '{write_comment(directives, spelling)}'."
        )
    connection.execute(statement)
