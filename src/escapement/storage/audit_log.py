"""The audit log: who did what, when and why, in one row for each administrative action.

Owns the table ``audit``, which the brokers of all bundles share. A broker enters an action before
it carries it out, and adds the outcome afterwards. So a change never lacks its row, even if the
broker dies between the two. Rows are read from the newest to the oldest, and deleted when they are
old.

Functions that write run inside a transaction of the caller (``CommitPipeline.transact``).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from escapement.storage.engine.base import Connection

# The outcome of an action that succeeded. Others are the codes of errors.
DONE: Final = "done"
# The most bytes of the columns ``object`` and ``client``. Longer texts are cut.
MAX_OBJECT_BYTES: Final = 640
MAX_CLIENT_BYTES: Final = 800
# The highest id and time, and so the position before the newest row.
NEWEST: Final = (1 << 62, 1 << 62)

_COLUMNS: Final = "at_ms, bundle_id, broker, role, peer, client, verb, object, arguments, reason"
# Limit of rows that one call of :func:`forget_step` deletes.
_STEP_ROWS: Final = 512


class AuditedAction(NamedTuple):
    """An action, without its outcome."""

    at_ms: int
    bundle_id: int
    broker: str
    role: str  # "" if the log has no tokens
    peer: str
    client: str
    verb: str
    object: str
    arguments: str  # JSON
    reason: str


class AuditRow(NamedTuple):
    """A row of the audit log."""

    id: int
    action: AuditedAction
    outcome: str  # DONE, the code of an error, or "" if the broker does not know

    @property
    def position(self) -> tuple[int, int]:
        """The place of the row in the order of the audit log."""
        return self.action.at_ms, self.id


class AuditFilter(NamedTuple):
    """The conditions that rows must fulfil. A condition that is None is fulfilled by all rows.

    ``object`` lists names. A name with ``*`` at its end stands for all objects that begin with it.
    """

    role: str | None = None
    verb: str | None = None  # the beginning of verbs
    objects: tuple[str, ...] = ()
    from_ms: int = 0
    until_ms: int = NEWEST[0]


def enter(connection: Connection, action: AuditedAction, outcome: str = "") -> int:
    """Store an action, and return the id of its row."""
    values = (
        *action[:5],
        _cut(action.client, MAX_CLIENT_BYTES),
        action.verb,
        _cut(action.object, MAX_OBJECT_BYTES),
        _encoded(action.arguments),
        _encoded(action.reason),
        outcome,
    )
    marks = ", ".join("?" * len(values))
    return connection.execute(
        f"INSERT INTO audit ({_COLUMNS}, outcome) VALUES ({marks})", values
    ).last_id


def end(connection: Connection, id: int, outcome: str) -> None:
    """Store the outcome of an action."""
    connection.execute("UPDATE audit SET outcome = ? WHERE id = ?", (outcome, id))


def withdraw(connection: Connection, id: int) -> None:
    """Delete an action that another broker carries out."""
    connection.execute("DELETE FROM audit WHERE id = ?", (id,))


def read_page(
    connection: Connection, wanted: AuditFilter, before: tuple[int, int], count: int
) -> list[AuditRow]:
    """Return the newest rows that match, at most ``count``, the newest first.

    Args:
      before: the position of a row. Only older rows are returned.
    """
    at_ms, id = before
    conditions = ["at_ms >= ?", "at_ms < ?", "at_ms <= ?", "NOT (at_ms = ? AND id >= ?)"]
    params: list[Any] = [wanted.from_ms, wanted.until_ms, at_ms, at_ms, id]
    if wanted.role is not None:
        conditions.append("role = ?")
        params.append(wanted.role)
    if wanted.verb is not None:
        conditions.append("verb >= ? AND verb < ?")
        params += [wanted.verb, wanted.verb + "~"]  # after all characters of verbs
    if wanted.objects:
        either = [_condition(one) for one in wanted.objects]
        conditions.append(f"({' OR '.join(sql for sql, _ in either)})")
        params += [value for _, values in either for value in values]
    rows = connection.execute(
        f"SELECT id, {_COLUMNS}, outcome FROM audit WHERE {' AND '.join(conditions)}"
        " ORDER BY at_ms DESC, id DESC LIMIT ?",
        (*params, count),
    ).rows
    return [_row(*row) for row in rows]


def forget_step(before_ms: int, connection: Connection) -> bool:
    """Delete some actions before ``before_ms``. Return whether more may exist."""
    rows = connection.execute(
        f"SELECT id FROM audit WHERE at_ms < ? ORDER BY at_ms, id LIMIT {_STEP_ROWS}", (before_ms,)
    ).rows
    connection.execute_many("DELETE FROM audit WHERE id = ?", rows)
    return len(rows) == _STEP_ROWS


def _row(id: int, *columns: Any) -> AuditRow:
    at_ms, bundle_id, broker, role, peer, client, verb, *texts, outcome = columns
    object, arguments, reason = map(_text, texts)
    action = AuditedAction(
        at_ms,
        bundle_id,
        broker,
        role,
        peer,
        _text(client),
        verb,
        object,
        arguments,
        reason,
    )
    return AuditRow(id, action, outcome)


def _condition(object: str) -> tuple[str, list[bytes]]:
    """Return the SQL condition of an object, and its parameters."""
    if not object.endswith("*"):
        return "object = ?", [_encoded(object)]
    first = _encoded(object[:-1])
    return "(object >= ? AND object < ?)", [first, first + b"\xff"]  # no UTF-8 has this byte


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _cut(text: str, most: int) -> bytes:
    """Return a text as UTF-8, without the characters that are too many."""
    return _encoded(_encoded(text)[:most].decode("utf-8", "ignore"))


def _text(value: bytes) -> str:
    return bytes(value).decode("utf-8", "replace")
