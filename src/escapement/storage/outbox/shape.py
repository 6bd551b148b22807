"""The shape of a table in the database of an application: its columns and indexes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from escapement.errors import InvalidRequest
from escapement.storage.engine.base import Connection

NUMBERS: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
BYTES: Final = frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
TEXTS: Final = frozenset(
    {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json", "uuid"}
)
TIMES: Final = frozenset({"datetime", "timestamp"})

_OF_TABLE: Final = "TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ?"
_TABLE: Final = (
    "SELECT CAST(TABLE_NAME AS CHAR), CAST(TABLE_TYPE AS CHAR), CAST(ENGINE AS CHAR)"
    f" FROM information_schema.TABLES WHERE {_OF_TABLE}"
)
# MySQL has some of these texts in columns of other types. CAST gives all of them the same type.
_COLUMNS: Final = (
    "SELECT CAST(TABLE_NAME AS CHAR), CAST(COLUMN_NAME AS CHAR), CAST(DATA_TYPE AS CHAR),"
    " CAST(IS_NULLABLE AS CHAR), CAST(COLUMN_DEFAULT AS CHAR), CAST(EXTRA AS CHAR)"
    f" FROM information_schema.COLUMNS WHERE {_OF_TABLE} ORDER BY ORDINAL_POSITION"
)
_INDEXES: Final = (
    "SELECT CAST(TABLE_NAME AS CHAR), CAST(INDEX_NAME AS CHAR), CAST(NON_UNIQUE AS SIGNED),"
    " CAST(COLUMN_NAME AS CHAR), CAST(SUB_PART AS SIGNED) FROM information_schema.STATISTICS"
    f" WHERE {_OF_TABLE} ORDER BY INDEX_NAME, SEQ_IN_INDEX"
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, and the rest as ``information_schema`` has it, in lower case."""

    name: str
    type: str
    nullable: bool
    default: str | None
    extra: str

    @property
    def generated(self) -> bool:
        return "generated" in self.extra and "default_generated" not in self.extra


@dataclass(frozen=True, slots=True)
class Index:
    """An index over whole columns. ``columns`` ends before the first part of a column."""

    name: str
    unique: bool
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns and indexes of a table."""

    table: str
    columns: tuple[Column, ...]
    indexes: tuple[Index, ...]

    def column(self, name: str, option: str) -> Column:
        """Return the column of this name, in upper or lower case.

        Raises:
          InvalidRequest: if there is none. ``option`` is how to name another one.
        """
        for column in self.columns:
            if column.name.lower() == name.lower():
                return column
        names = ", ".join(column.name for column in self.columns)
        raise InvalidRequest(
            f"table {self.table} has no column {name}; name another with {option}: {names}"
        )


def read_shape(connection: Connection, table: str) -> Shape:
    """Return the shape of a table of the connection's database.

    The name may be in upper or lower case, if the server ignores the case of names. The shape has
    it as the server does.

    Raises:
      InvalidRequest: if the table does not exist, or is not an InnoDB table.
    """
    found = connection.execute(_TABLE, (table,)).rows
    if not found:
        raise InvalidRequest(f"table {table} does not exist")
    # Other rows are of tables whose names differ in case.
    name, kind, engine = next((row for row in found if row[0] == table), found[0])
    if kind != "BASE TABLE" or str(engine).lower() != "innodb":
        raise InvalidRequest(
            f"table {table} must be an InnoDB table, and is a {kind.lower()} of engine {engine}"
        )
    columns = tuple(
        Column(column, type.lower(), nullable == "YES", default, (extra or "").lower())
        for of, column, type, nullable, default, extra in connection.execute(
            _COLUMNS, (table,)
        ).rows
        if of == name
    )
    parts: dict[tuple[str, bool], list[str | None]] = {}
    for of, index, non_unique, column, part in connection.execute(_INDEXES, (table,)).rows:
        if of != name:
            continue
        parts.setdefault((index, not non_unique), []).append(column if part is None else None)
    indexes = tuple(
        Index(index, unique and None not in those, _whole(those))
        for (index, unique), those in parts.items()
    )
    return Shape(name, columns, indexes)


def _whole(columns: list[str | None]) -> tuple[str, ...]:
    """Return the columns before the first part of a column, or expression."""
    whole: list[str] = []
    for column in columns:
        if column is None:
            break
        whole.append(column)
    return tuple(whole)
