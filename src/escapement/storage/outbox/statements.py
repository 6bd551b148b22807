"""The SQL statements of an outbox, made from its mapping and the shape of its table.

Pure. A mapping that does not fit its table is refused with the reason, and with the statement or
option that corrects it.

A look for rows must never pass rows that are done. So it uses an index in which the rows that wait
are together, and in order. It names the index, so that the plan does not depend on the optimizer's
estimates, by which the primary key may seem better for a few rows in order.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from escapement.errors import InvalidRequest
from escapement.message import DEFAULT_PRIORITY
from escapement.names import TopicName
from escapement.storage.outbox.column_sql import (
    default_of,
    id_of,
    json_of,
    literal,
    quoted,
    shown,
    text_of,
    value_of,
)
from escapement.storage.outbox.mapping import DUE_UNITS, OURS, OutboxMapping
from escapement.storage.outbox.shape import BYTES, NUMBERS, TEXTS, TIMES, Column, Shape
from escapement.storage.outbox.tables import MAX_MESSAGE_BYTES, REFUSED

# NULL as a text and as a number. A plain NULL has a type that the engine does not read.
_NO_TEXT: Final = "CAST(NULL AS CHAR)"
_NO_NUMBER: Final = "CAST(NULL AS SIGNED)"
# The most rows of a usual look.
MAX_ROWS: Final = 4_096
# The most rows of a usual look at a table that does not store the sizes of payloads, because the
# database then reads each payload for its size.
MAX_ROWS_UNSIZED: Final = 512


class Statements(NamedTuple):
    """The statements of an outbox. ``{ids}`` stands for a list of ids."""

    # Of the first rows that wait, up to a number: id, key, size, dedup key, and the topic of a
    # request.
    look: str
    look_rows: int  # the most rows of a usual look
    read: str  # rows with these ids, if they wait
    first: str  # the first rows, up to a number
    waiting: str  # the number of rows that wait, up to a number
    done: str  # makes the row with an id done
    done_together: str | None  # does so for the ids in a JSON array; None if they are not numbers
    refuse: str  # copies the row with an id to the table of refused rows, with a reason
    due_unit: tuple[int, int]
    header_names: tuple[str, ...]
    warnings: tuple[str, ...]  # what the operator should know


def statements(mapping: OutboxMapping, shape: Shape) -> Statements:
    """Return the statements of an outbox.

    Raises:
      InvalidRequest: if the mapping does not fit the table.
    """
    parts = _Parts(mapping, shape)
    table, id, order = quoted(shape.table), quoted(parts.id.name), quoted(parts.order.name)
    by = id if parts.order is parts.id else f"{order}, {id}"
    wanted = f" WHERE {parts.pending}" if parts.pending else ""
    waiting = f"FROM {table} FORCE INDEX ({quoted(parts.look_index)}){wanted}"
    look_rows = MAX_ROWS if mapping.size_column else MAX_ROWS_UNSIZED
    also = f" AND {parts.pending}" if parts.pending else ""
    # For a list of ids, the server may scan the table, and wait for rows of open transactions.
    # So the ids are a table that is read first, and each row is found by its index.
    joined = (
        "JSON_TABLE(?, '$[*]' COLUMNS (done_id BIGINT PATH '$')) AS moved"
        f" STRAIGHT_JOIN {table} AS o FORCE INDEX ({quoted(parts.id_index)}) ON o.{id} = done_id"
    )
    done, together = f"DELETE FROM {table} WHERE {id} = ?", f"DELETE o FROM {joined}"
    if parts.done is not None:
        done = f"UPDATE {table} SET {parts.done} WHERE {id} = ?"
        together = f"UPDATE {joined} SET {parts.done}"
    return Statements(
        look=f"SELECT {parts.id_value}, {parts.key}, {parts.size}, {parts.dedup}, {parts.about}"
        f" {waiting} ORDER BY {by} LIMIT ?",
        look_rows=look_rows,
        read=f"SELECT {parts.columns} FROM {table} FORCE INDEX ({quoted(parts.id_index)})"
        f" WHERE {id} {{ids}}{also} ORDER BY {id} FOR UPDATE",
        first=f"SELECT {parts.columns} {waiting} ORDER BY {by} LIMIT ?",
        waiting=f"SELECT COUNT(*) FROM (SELECT 1 {waiting} LIMIT ?) AS waiting",
        done=done,
        done_together=together if parts.id.type in NUMBERS else None,
        refuse=parts.refuse,
        due_unit=DUE_UNITS[mapping.due_unit],
        header_names=tuple(name for name, _ in mapping.header_columns),
        warnings=parts.warnings,
    )


class _Parts:
    """The parts of the statements, checked one after the other."""

    def __init__(self, mapping: OutboxMapping, shape: Shape) -> None:
        self._mapping = mapping
        self._shape = shape
        self.warnings: tuple[str, ...] = ()
        self.id = self._checked_id()
        self.id_value = id_of(self.id)
        self.id_index = self._index_of_id()
        order = mapping.order_column
        self.order = shape.column(order, "--order-column") if order else self.id
        self.done: str | None = None
        conditions = self._conditions()
        self.pending = " AND ".join(conditions)
        self.look_index = self._look_index()
        self._read_parts()
        if self.order is self.id and self.id.type not in NUMBERS:
            self.warnings += (
                f"Rows are moved in the order of {self.id.name}, which is not a number. If the "
                "order of rows with the same key matters, give --order-column.",
            )

    # -- the id and the order --------------------------------------------------

    def _checked_id(self) -> Column:
        column = self._shape.column(self._mapping.id_column, "--id-column")
        allowed = NUMBERS | {"char", "varchar", "binary", "varbinary", "uuid"}
        if column.type not in allowed or column.nullable:
            raise InvalidRequest(
                f"column {column.name} of table {self._shape.table} cannot identify rows: it must "
                f"be NOT NULL and an integer, CHAR, VARCHAR, BINARY, VARBINARY or UUID, not "
                f"{column.type.upper()}"
            )
        return column

    def _index_of_id(self) -> str:
        for index in self._shape.indexes:
            if index.unique and _same(index.columns, (self.id.name,)):
                return index.name
        raise InvalidRequest(
            f"no unique index of table {self._shape.table} has column {self.id.name} alone; name "
            f"another with --id-column, or create one: CREATE UNIQUE INDEX "
            f"{self._shape.table}_{self.id.name} ON {shown(self._shape.table)} "
            f"({shown(self.id.name)})"
        )

    def _look_index(self) -> str:
        """Return the index in which rows that wait are together and in order."""
        first = self._mapping.done_column
        wanted = (*((first,) if first else ()), self.order.name)
        if not first and self.order is self.id:
            return self.id_index
        primary = next((one for one in self._shape.indexes if one.name == "PRIMARY"), None)
        for index in self._shape.indexes:
            # InnoDB appends the primary key to the columns of every other index.
            columns = index.columns + (primary.columns if primary else ())
            if _same(columns[: len(wanted)], wanted):
                return index.name
        names = ", ".join(shown(name) for name in wanted)
        raise InvalidRequest(
            f"no index of table {self._shape.table} begins with {names}, so each look for rows "
            f"would read the whole table; create one: CREATE INDEX {self._shape.table}_waiting ON "
            f"{shown(self._shape.table)} ({names})"
        )

    # -- rows that wait, and rows that are done --------------------------------

    def _conditions(self) -> list[str]:
        mapping, conditions = self._mapping, []
        if mapping.done_column is not None:
            column = self._shape.column(mapping.done_column, "--done")
            if column.generated or column is self.id:
                raise InvalidRequest(f"column {column.name} cannot be changed; use another --done")
            pending = self._pending_value(column)
            if pending is None and mapping.done_value.upper() == "NULL":
                raise InvalidRequest("rows that wait and rows that are done must differ")
            done = value_of(column, mapping.done_value)
            if pending is not None and value_of(column, pending) == done:
                raise InvalidRequest(
                    f"column {column.name} has {pending} in rows that wait and in rows that are "
                    "done; give another --pending"
                )
            name = quoted(column.name)
            self.done = f"{name} = {done}"
            conditions.append(
                f"{name} IS NULL" if pending is None else f"{name} = {value_of(column, pending)}"
            )
        if mapping.not_null_column is not None:
            column = self._shape.column(mapping.not_null_column, "--not-null-column")
            conditions.append(f"{quoted(column.name)} IS NOT NULL")
        return conditions

    def _pending_value(self, column: Column) -> str | None:
        """Return the value of the done column in rows that wait; None for NULL."""
        value = self._mapping.pending_value
        if value is None:
            value = default_of(column)
        elif value.upper() == "NULL":
            value = None
        if value is None and not column.nullable:
            raise InvalidRequest(
                f"column {column.name} has no default; give the value of rows that wait with "
                "--pending"
            )
        return value

    # -- the parts of a message ------------------------------------------------

    def _read_parts(self) -> None:
        mapping = self._mapping
        self.key = self._key()
        headers = self._of(mapping.headers_column, "--headers-column", TEXTS | BYTES)
        payload, size, self._kept_payload, left_out = self._payload()
        if headers is not None:
            size = f"{size} + COALESCE(OCTET_LENGTH({quoted(headers.name)}), 0)"
        self.size = size
        fits = f"{size} <= {MAX_MESSAGE_BYTES}"
        self._topic = self._checked_topic()
        self._headers = _NO_TEXT if headers is None else text_of(headers)
        due = self._of(mapping.due_column, "--due-column", self._due_types())
        dedup = self._of(mapping.dedup_column, "--dedup-column")
        priority = self._of(mapping.priority_column, "--priority-column", NUMBERS)
        self.dedup = _NO_TEXT if dedup is None else text_of(dedup)
        self._priority = (
            _NO_NUMBER if priority is None else f"CAST({quoted(priority.name)} AS SIGNED)"
        )
        action = self._of(mapping.action_column, "action")
        self._action = _NO_TEXT if action is None else text_of(action)
        self.about = _NO_TEXT
        if action is not None:
            self.about = f"CASE WHEN {quoted(action.name)} IS NOT NULL THEN {self._topic} END"
        # The payload and the headers of a row that is too large are not read.
        selected = [
            self.id_value,
            self._topic,
            self.key,
            f"CASE WHEN {fits} THEN {payload} END",
            f"CASE WHEN {fits} THEN {self._headers} END",
            self._due(due),
            self.dedup,
            self._priority,
            self._action,
        ]
        for _, name in mapping.header_columns:
            selected.append(text_of(self._shape.column(name, "--header")))
        self.columns = ", ".join(selected)
        self.refuse = self._refuse(due, left_out)

    def _of(
        self, name: str | None, option: str, types: frozenset[str] | None = None
    ) -> Column | None:
        if name is None:
            return None
        column = self._shape.column(name, option)
        if types is not None and column.type not in types:
            allowed = ", ".join(sorted(types)).upper()
            raise InvalidRequest(
                f"column {column.name} of table {self._shape.table} is {column.type.upper()}; "
                f"{option} needs one of {allowed}"
            )
        return column

    def _checked_topic(self) -> str:
        mapping = self._mapping
        column = self._of(mapping.topic_column, "--topic-column")
        if (column is None) == (mapping.topic is None):
            raise InvalidRequest(
                "give either --topic, for one topic of all messages, or --topic-column"
            )
        if column is None:
            return literal(TopicName.parse(mapping.topic or "").full)
        value = text_of(column)
        return (
            f"CONCAT({literal(mapping.topic_prefix)}, {value})" if mapping.topic_prefix else value
        )

    def _key(self) -> str:
        mapping = self._mapping
        column = self._of(mapping.key_column, "--key-column")
        if column is not None:
            return text_of(column)
        if mapping.key_header is None:
            return _NO_TEXT
        if mapping.headers_column is None:
            raise InvalidRequest("--key-header needs --headers-column")
        headers = quoted(self._shape.column(mapping.headers_column, "--headers-column").name)
        path = literal('$."' + mapping.key_header.replace("\\", "\\\\").replace('"', '\\"') + '"')
        found = f"JSON_UNQUOTE(JSON_EXTRACT({headers}, {path}))"
        return f"CASE WHEN JSON_VALID({headers}) THEN CAST({found} AS CHAR) END"

    def _payload(self) -> tuple[str, str, str, str | None]:
        """Return the payload, its size, the payload to keep, and the column that it is from."""
        mapping = self._mapping
        column = self._of(mapping.payload_column, "--payload-column")
        if column is None:
            row = self._row_json()
            # NULL if the database cannot make the object, because its packets are too small.
            return f"CAST({row} AS BINARY)", f"COALESCE(OCTET_LENGTH({row}), 0)", "''", None
        name = quoted(column.name)
        size = f"OCTET_LENGTH({name})"
        if mapping.size_column is not None:
            size = quoted(self._shape.column(mapping.size_column, "--size-column").name)
        binary = column.type in BYTES or column.type == "binary"
        value = name if binary else f"CONVERT({name} USING utf8mb4)"
        payload = f"COALESCE(CAST({value} AS BINARY), '')"
        return payload, f"COALESCE({size}, 0)", name, column.name

    def _row_json(self, without: str | None = None) -> str:
        """Return the row as a JSON object; NULL if its bytes in base64 are too long for a packet.

        The server would make NULL of a value that is longer than its packets, also inside the
        object.
        """
        columns = [column for column in self._shape.columns if column.name != without]
        pairs = ", ".join(f"{literal(column.name)}, {json_of(column)}" for column in columns)
        fits = [
            f"({quoted(column.name)} IS NULL OR {json_of(column)} IS NOT NULL)"
            for column in columns
            if column.type in BYTES
        ]
        made = f"JSON_OBJECT({pairs})"
        return f"CASE WHEN {' AND '.join(fits)} THEN {made} END" if fits else made

    def _due_types(self) -> frozenset[str]:
        if self._mapping.due_unit not in DUE_UNITS:
            raise InvalidRequest(f"--due-unit must be one of {', '.join(DUE_UNITS)}")
        return TIMES if self._mapping.due_unit == "datetime" else NUMBERS

    def _due(self, column: Column | None) -> str:
        if column is None:
            return _NO_NUMBER
        if column.type in TIMES:
            return f"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {quoted(column.name)})"
        return quoted(column.name)

    def _refuse(self, due: Column | None, left_out: str | None) -> str:
        """Return the statement that keeps a refused row.

        A mapped row is kept as JSON too, without the payload. A row that cannot be kept so is not
        copied at all, if it would be deleted.
        """
        due_at = "NULL" if due is None else quoted(due.name)
        if due is not None and due.type not in TIMES:
            factor, divisor = DUE_UNITS[self._mapping.due_unit]
            due_at = f"FROM_UNIXTIME({due_at} DIV {1000 * divisor // factor})"
        row, condition = "NULL", ""
        if self._mapping != OURS:
            row = self._row_json(left_out)
            condition = "" if self._mapping.done_column else f" AND {row} IS NOT NULL"
        # IGNORE shortens values that do not fit.
        return (
            f'INSERT IGNORE INTO {REFUSED} (refused_at, reason, outbox, id, topic, "key",'
            " payload, headers, due_at, dedup_key, priority, action, row_json)"
            f" SELECT UTC_TIMESTAMP(3), ?, {literal(self._shape.table)}, {text_of(self.id)},"
            f" {self._topic}, {self.key}, {self._kept_payload}, {self._headers}, {due_at},"
            f" {self.dedup}, COALESCE({self._priority}, {DEFAULT_PRIORITY}), {self._action},"
            f" {row}"
            f" FROM {quoted(self._shape.table)} WHERE {quoted(self.id.name)} = ?{condition}"
        )


def _same(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return tuple(map(str.lower, one)) == tuple(map(str.lower, other))
