"""The columns of a message table, and their check against the two editions of its shape.

======================  ==================================  =====================================
column                  current edition                     first edition
======================  ==================================  =====================================
``id``                  unique, of an exact type            unique, of an exact type
``priority``            lower numbers are sent first        absent: counts as 50
``epoch``               how often the message was sent      the same
``time_next``           when the message is sent next       the same; NULL in a new row
``time_acked``          when it was acknowledged, or NULL   the same
``time_scheduled``      a further column, if present        the first ``time_next``
``time_created``        a further column, if present        when the row was inserted
======================  ==================================  =====================================

All times are nanoseconds since 1970. A table with ``time_scheduled`` and without ``priority`` is of
the first edition. Every other column is a *further* column, which belongs to the application. MySQL
compares names of columns without case, and so does this module.

A message is found by the text of its id. So an id has a type whose values can be read back from
their texts exactly, in every session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from escapement.errors import TableRejected
from escapement.identifier import quoted

Edition = Literal["current", "first"]

# The priority of a message whose table has no column for it, or NULL in it.
DEFAULT_PRIORITY: Final = 50


class Column(NamedTuple):
    """A column as the database describes it."""

    name: str
    data_type: str  # the type without its length, such as "varchar"; "json" also in MariaDB
    column_type: str  # the whole type, such as "varchar(128)"
    is_nullable: bool
    is_generated: bool  # computed from other columns, so it cannot be written


class Index(NamedTuple):
    """An index as the database describes it."""

    name: str
    is_unique: bool
    columns: tuple[str, ...]

    @property
    def is_primary(self) -> bool:
        return self.name == "PRIMARY"


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table that can be served, by their meaning."""

    edition: Edition
    id: Column
    further: tuple[Column, ...]  # the application's columns, in the order of the table
    primary_key: tuple[str, ...]  # the names of its columns, in the order of the index
    id_index: str  # the name of the index by which a message is found by its id
    due_index: Index | None  # the index by which due messages are found
    unacked_indexes: frozenset[str]  # the names of indexes that begin with ``time_acked``
    most_epoch: int  # the highest value of the column ``epoch``
    is_partitioned: bool


class _Need(NamedTuple):
    """The requirements on a column of an edition."""

    types: frozenset[str]  # empty: any type
    definition: str  # the column's type and default, for error messages
    is_written: bool = False  # whether the broker writes it
    can_be_null: bool = False  # whether NULL is written to it


_NANOSECONDS: Final = frozenset({"bigint"})
# An epoch counts deliveries without end, so small types would overflow.
_COUNTER: Final = frozenset({"mediumint", "int", "bigint"})
_INTEGER: Final = _COUNTER | {"tinyint", "smallint"}
_BITS: Final = {"mediumint": 24, "int": 32, "bigint": 64}
# The first columns of the indexes by which due messages are found, the best first.
DUE_INDEXES: Final[Mapping[Edition, tuple[tuple[str, ...], ...]]] = {
    "current": (("time_acked", "priority", "time_next"),),
    "first": (("time_acked", "time_next"), ("time_next", "epoch")),
}

# The types that ids cannot have, with the reason and the definition to use instead.
_NO_IDS: Final = {
    **dict.fromkeys(
        ("float", "double"),
        (
            "so its values cannot be compared exactly",
            "BIGINT NOT NULL, or DECIMAL(40, 10) NOT NULL if ids have fractions",
        ),
    ),
    "timestamp": (
        "so its values depend on the time zone of the session",
        "DATETIME(6) NOT NULL",
    ),
}

_EPOCH: Final = _Need(_COUNTER, "BIGINT NOT NULL DEFAULT 0", is_written=True)
_TIME: Final = _Need(_NANOSECONDS, "BIGINT NULL", is_written=True, can_be_null=True)
_NEEDS: Final[Mapping[Edition, Mapping[str, _Need]]] = {
    "current": {
        "id": _Need(frozenset(), "BIGINT NOT NULL"),
        "priority": _Need(_INTEGER, f"TINYINT NOT NULL DEFAULT {DEFAULT_PRIORITY}"),
        "epoch": _EPOCH,
        "time_next": _TIME._replace(definition="BIGINT NULL DEFAULT 0"),
        "time_acked": _TIME,
    },
    "first": {
        "time_scheduled": _Need(_NANOSECONDS, "BIGINT NOT NULL"),
        "id": _Need(frozenset(), "BIGINT NOT NULL"),
        "time_next": _TIME,
        "epoch": _EPOCH,
        "time_created": _Need(_NANOSECONDS, "BIGINT"),
        "time_acked": _TIME,
    },
}


def check_columns(
    table: str,
    columns: Sequence[Column],
    indexes: Sequence[Index],
    *,
    is_partitioned: bool = False,
) -> Layout:
    """Check the columns and the keys of a message table, and return its layout.

    Args:
      columns: all columns of the table, in order.
      is_partitioned: whether the table has partitions. Each of its unique indexes then has the
        columns by which it is partitioned too. That ids are unique is up to the application.

    Raises:
      TableRejected: if a column is missing or cannot hold its values, or ids are not unique. The
        message names the table and the column, and has the statement that corrects it.
    """
    by_name = {column.name.lower(): column for column in columns}
    edition: Edition = "current"
    if "time_scheduled" in by_name and "priority" not in by_name:
        edition = "first"
    needs = _NEEDS[edition]
    for name, need in needs.items():
        if name not in by_name:
            raise TableRejected(
                f"Table {table} has no column {name}. ALTER TABLE {quoted(table)} ADD COLUMN"
                f" {quoted(name)} {need.definition}."
            )
        _check_column(table, by_name[name], need)
    id = by_name["id"]
    _check_id_type(table, id)
    id_index = _check_unique(table, id, indexes, is_partitioned)
    return Layout(
        edition=edition,
        id=id,
        further=tuple(column for column in columns if column.name.lower() not in needs),
        primary_key=next((index.columns for index in indexes if index.is_primary), ()),
        id_index=id_index,
        due_index=_due_index(edition, indexes),
        unacked_indexes=frozenset(
            index.name for index in indexes if index.columns[0].lower() == "time_acked"
        ),
        # Parameters of statements are signed, so the highest epoch of an unsigned column is too.
        most_epoch=(1 << (_BITS[by_name["epoch"].data_type] - 1)) - 1,
        is_partitioned=is_partitioned,
    )


def _due_index(edition: Edition, indexes: Sequence[Index]) -> Index | None:
    for wanted in DUE_INDEXES[edition]:
        for index in indexes:
            if tuple(name.lower() for name in index.columns[: len(wanted)]) == wanted:
                return index
    return None


def _check_column(table: str, column: Column, need: _Need) -> None:
    problem = None
    if need.types and column.data_type not in need.types:
        problem = f"has the type {column.data_type}, which cannot hold its values"
    elif need.is_written and column.is_generated:
        problem = "is generated, so it cannot be written"
    elif need.can_be_null and not column.is_nullable:
        problem = "is NOT NULL, but it must be NULL at times"
    if problem is not None:
        raise TableRejected(
            f"Column {column.name} of table {table} {problem}. ALTER TABLE {quoted(table)} MODIFY"
            f" COLUMN {quoted(column.name)} {need.definition}."
        )


def _check_id_type(table: str, id: Column) -> None:
    if id.data_type in _NO_IDS:
        why, definition = _NO_IDS[id.data_type]
        raise TableRejected(
            f"Column {id.name} of table {table} has the type {id.data_type}, {why}. ALTER TABLE"
            f" {quoted(table)} MODIFY COLUMN {quoted(id.name)} {definition}."
        )


def _check_unique(table: str, id: Column, indexes: Sequence[Index], is_partitioned: bool) -> str:
    """Check that ids are unique; return the name of the index by which a row is found by its id."""

    def is_key(index: Index) -> bool:
        columns = index.columns[:1] if is_partitioned else index.columns
        return index.is_unique and [name.lower() for name in columns] == [id.name.lower()]

    keys = [index for index in indexes if is_key(index)]
    if not keys:
        raise TableRejected(
            f"Column {id.name} of table {table} is not unique, but messages are found by it. ALTER"
            f" TABLE {quoted(table)} ADD UNIQUE INDEX `id_idx` ({quoted(id.name)})."
        )
    if id.is_nullable:
        raise TableRejected(
            f"Column {id.name} of table {table} may be NULL, but messages are found by it. ALTER"
            f" TABLE {quoted(table)} MODIFY COLUMN {quoted(id.name)} {id.column_type} NOT NULL."
        )
    return next((index for index in keys if index.is_primary), keys[0]).name
