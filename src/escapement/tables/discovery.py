"""The message tables of a database, found in its information_schema.

A look begins with one statement that finds the tables whose COMMENT has a marker. Only if one of
them was created, altered or dropped since the last look, two more statements read the columns and
indexes of all of them. With 1,000 tables, these take ten times as long as the first. A table is
checked only when its definition differs from that of the look before; otherwise its object is the
same as before. So a caller may look often, and compare objects with ``is``.

CREATE_TIME tells that a table was altered. It has whole seconds, so a table that was altered within
the last two counts as altered in each look. Whether each ALTER TABLE sets it depends on the server.
So a caller looks in full from time to time.

The statements see the database at different moments, so the first is sent once more at the end. If
a table was altered meanwhile, nothing is known. MariaDB also leaves a table out while another
session alters or renames it, with a warning, if the asking session holds a named lock. A look that
met such a table has no result either: the tables that were found before are kept until the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from escapement.errors import InvalidRequest, StorageError, TableRejected
from escapement.identifier import quoted
from escapement.names import check_table_name
from escapement.storage.engine.base import Connection
from escapement.tables.columns import Column, Index, Layout, check_columns
from escapement.tables.directives import (
    MARKERS,
    SIGNS,
    Directives,
    Spelling,
    is_message_table,
    parse_comment,
)

# Tables whose COMMENT may have a marker. ``is_message_table`` decides.
_CANDIDATES: Final = "TABLE_SCHEMA = DATABASE() AND ({})".format(
    " OR ".join(f"TABLE_COMMENT LIKE '%{text}%'" for text in (*MARKERS.values(), *SIGNS))
)
# MariaDB's warning that it left out a table, because another session changes its definition.
_SKIPPED: Final = 1684
# MySQL has some of these texts in columns of other types. CAST gives all of them the same type.
_TABLES: Final = (
    "SELECT CAST(TABLE_NAME AS CHAR), CAST(TABLE_COMMENT AS CHAR), CAST(ENGINE AS CHAR),"
    " CAST(CREATE_OPTIONS AS CHAR), CAST(CREATE_TIME AS CHAR),"
    " CREATE_TIME > NOW() - INTERVAL 2 SECOND"
    f" FROM information_schema.TABLES WHERE {_CANDIDATES} ORDER BY TABLE_NAME"
)
_OF_CANDIDATES: Final = (
    "TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN"
    f" (SELECT TABLE_NAME FROM information_schema.TABLES WHERE {_CANDIDATES})"
)
# A column that MariaDB created as JSON is a LONGTEXT with a check named like the column. Only
# MariaDB reads /*M! comments.
_COLUMNS: Final = (
    "SELECT CAST(TABLE_NAME AS CHAR), CAST(COLUMN_NAME AS CHAR),"
    " CAST(/*M! IF(is_json, 'json', */ DATA_TYPE /*M! ) */ AS CHAR),"
    " CAST(COLUMN_TYPE AS CHAR), CAST(IS_NULLABLE AS CHAR),"
    " CAST(EXTRA AS CHAR) FROM information_schema.COLUMNS"
    " /*M! LEFT JOIN (SELECT TABLE_NAME AS checked_table, CONSTRAINT_NAME, TRUE AS is_json"
    " FROM information_schema.CHECK_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = DATABASE()"
    " AND LEVEL = 'Column' AND CHECK_CLAUSE LIKE 'json_valid(%') AS checks"
    " ON checked_table = TABLE_NAME AND CONSTRAINT_NAME = COLUMN_NAME */"
    f" WHERE {_OF_CANDIDATES} ORDER BY TABLE_NAME, ORDINAL_POSITION"
)
_INDEXES: Final = (
    "SELECT CAST(TABLE_NAME AS CHAR), CAST(INDEX_NAME AS CHAR), CAST(NON_UNIQUE AS SIGNED),"
    " CAST(COLUMN_NAME AS CHAR) FROM information_schema.STATISTICS"
    f" WHERE {_OF_CANDIDATES} ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX"
)


@dataclass(frozen=True, slots=True, eq=False)
class MessageTable:
    """A message table that can be served."""

    name: str
    spelling: Spelling
    directives: Directives
    layout: Layout
    sent: tuple[Column, ...]  # the columns that consumers get, in order
    warnings: tuple[str, ...]  # what users of the table should change


@dataclass(frozen=True, slots=True, eq=False)
class RejectedTable:
    """A message table that cannot be served, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class MessageTables:
    """The message tables of a database, by name."""

    good: Mapping[str, MessageTable]
    rejected: Mapping[str, RejectedTable]


class _Outline(NamedTuple):
    """What the first statement of a look reads of a table."""

    name: str
    comment: str
    engine: str | None
    options: str | None
    created: str | None  # or last altered
    is_fresh: bool  # created or altered within the last two seconds


class _BeingAltered(StorageError):
    """Raised when the database cannot describe its tables, because another session alters one."""

    retryable = True


class _Definition(NamedTuple):
    """All that decides whether a table can be served, as the database describes it."""

    comment: str
    engine: str | None
    is_partitioned: bool
    columns: tuple[Column, ...]
    indexes: tuple[Index, ...]


class Discovery:
    """Repeated looks at the message tables of one database."""

    def __init__(self) -> None:
        self._outlines: list[_Outline] | None = None  # of the last look
        self._definitions: dict[str, _Definition] = {}
        self._found = MessageTables({}, {})

    def look(self, connection: Connection, *, in_full: bool = False) -> MessageTables:
        """Return the message tables of the connection's database; blocking.

        Returns the same object as the last look if no message table was created, altered or
        dropped since, or if one is being altered. A table that was not altered is the same object
        in both results.

        Args:
          in_full: read all definitions, even if no table seems to be altered.

        Raises:
          StorageError: if the database cannot be asked, or a table was being altered during the
            first look. The next look may succeed.
        """
        outlines = _outlines(connection)
        is_known = outlines == self._outlines and not any(one.is_fresh for one in outlines)
        if is_known and not in_full:
            return self._found
        try:
            _check_complete(connection)
            definitions = _definitions(connection, outlines)
        except _BeingAltered:
            if self._outlines is None:
                raise
            return self._found
        if definitions != self._definitions:
            before, was = self._found, self._definitions
            good: dict[str, MessageTable] = {}
            rejected: dict[str, RejectedTable] = {}
            for name, definition in definitions.items():
                kept = was.get(name) == definition
                if kept and name in before.good:
                    good[name] = before.good[name]
                elif kept:
                    rejected[name] = before.rejected[name]
                else:
                    try:
                        good[name] = _checked(name, definition)
                    except TableRejected as error:
                        rejected[name] = RejectedTable(name, str(error))
            self._found, self._definitions = MessageTables(good, rejected), definitions
        self._outlines = outlines
        return self._found


def _outlines(connection: Connection) -> list[_Outline]:
    """Return the outlines of all tables whose COMMENT has a marker."""
    rows = connection.execute(_TABLES).rows
    return [_Outline(*row) for row in rows if is_message_table(row[1])]


def _definitions(connection: Connection, outlines: Sequence[_Outline]) -> dict[str, _Definition]:
    """Return the definitions of the tables with these outlines, by name.

    Raises:
      _BeingAltered: if a table was altered meanwhile.
    """
    if not outlines:
        return {}
    columns: dict[str, list[Column]] = {}
    for table, *rest in connection.execute(_COLUMNS).rows:
        columns.setdefault(table, []).append(_column(rest))
    _check_complete(connection)
    parts: dict[str, dict[tuple[str, bool], list[str]]] = {}
    for table, index, non_unique, column in connection.execute(_INDEXES).rows:
        # An index on an expression has no name of a column for it.
        key = (index, not non_unique)
        parts.setdefault(table, {}).setdefault(key, []).append(column or "")
    _check_complete(connection)
    after = [one._replace(is_fresh=False) for one in _outlines(connection)]
    if after != [one._replace(is_fresh=False) for one in outlines]:
        raise _BeingAltered("message tables were altered while their definitions were read")
    return {
        one.name: _Definition(
            one.comment,
            one.engine,
            "partitioned" in (one.options or ""),
            tuple(columns.get(one.name, ())),
            tuple(Index(*key, tuple(names)) for key, names in parts.get(one.name, {}).items()),
        )
        for one in outlines
    }


def _check_complete(connection: Connection) -> None:
    """Check that the last statement has left out no table.

    Raises:
      _BeingAltered: if it has.
    """
    for _, number, text in connection.execute("SHOW WARNINGS").rows:
        if number == _SKIPPED:
            raise _BeingAltered(str(text))


def _column(row: Sequence[object]) -> Column:
    name, data_type, column_type, is_nullable, extra = row
    said = str(extra).upper()
    return Column(
        name=str(name),
        data_type=str(data_type).lower(),
        column_type=str(column_type),
        is_nullable=is_nullable == "YES",
        # MySQL reports a default that is an expression as DEFAULT_GENERATED.
        is_generated="VIRTUAL GENERATED" in said or "STORED GENERATED" in said,
    )


def _checked(name: str, definition: _Definition) -> MessageTable:
    """Return a table that can be served.

    Raises:
      TableRejected: if it cannot be.
    """
    try:
        check_table_name(name)
    except InvalidRequest as error:
        raise TableRejected(str(error)) from None
    if (definition.engine or "").lower() != "innodb":
        raise TableRejected(
            f"Table {name} uses {definition.engine}, which has no transactions. ALTER TABLE"
            f" {quoted(name)} ENGINE=InnoDB."
        )
    if not definition.columns:
        raise TableRejected(
            f"The columns of table {name} cannot be read. GRANT SELECT, UPDATE, DELETE ON"
            f" {quoted(name)} to the user of the broker."
        )
    comment = parse_comment(definition.comment, name)
    layout = check_columns(
        name, definition.columns, definition.indexes, is_partitioned=definition.is_partitioned
    )
    unknown = [
        f"The COMMENT has {item!r}, which is not a directive. Correct or remove it."
        for item in comment.unknown
    ]
    return MessageTable(
        name,
        comment.spelling,
        comment.directives,
        layout,
        _sent(name, definition, comment.directives, layout),
        tuple(unknown),
    )


def _sent(
    table: str, definition: _Definition, directives: Directives, layout: Layout
) -> tuple[Column, ...]:
    """Return the columns that consumers get. Check the columns that the directives name."""
    by_name = {column.name.lower(): column for column in definition.columns}
    named = dict.fromkeys(directives.message_cols, "message_cols")
    if directives.key_column is not None:
        named[directives.key_column] = "key_column"
    for name, directive in named.items():
        if name.lower() not in by_name:
            raise TableRejected(
                f"Table {table} has no column {name}, which its directive {directive} names."
                " Correct the COMMENT, or add the column."
            )
    if directives.message_cols:
        return tuple(by_name[name.lower()] for name in directives.message_cols)
    return (layout.id, *layout.further)
