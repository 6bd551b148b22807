"""Executes a statement by any cursor of an application."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from escapement.errors import InvalidRequest

# Executes a statement, and returns how many rows it has changed, or how many rows a SELECT has.
Execute = Callable[[str, tuple[Any, ...]], int]


def executor(cursor: Any, statement_of: str) -> Execute:
    """Return a function that executes a statement with its parameters by ``cursor``.

    Args:
      cursor: a DB-API cursor, or a connection of SQLAlchemy.
      statement_of: the function of ``escapement.sql`` that returns the statement, for errors.

    Raises:
      InvalidRequest: if ``cursor`` is of another kind. The returned function raises it if the
        cursor turns out to be asynchronous. No statement was executed.
    """
    execute = getattr(cursor, "exec_driver_sql", None)
    if execute is None and hasattr(cursor, "fetchone"):
        execute = getattr(cursor, "execute", None)
    if execute is None:
        raise InvalidRequest(
            f"cursor must be a DB-API cursor or a SQLAlchemy connection, not {type(cursor)}"
        )
    asynchronous = InvalidRequest(
        "cursor is asynchronous: use `statement, parameters = "
        f"escapement.sql.{statement_of}(...)`, and execute these yourself"
    )
    if inspect.iscoroutinefunction(execute):
        raise asynchronous

    def run(statement: str, parameters: tuple[Any, ...]) -> int:
        result = execute(statement, parameters)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()  # it has not begun, so nothing was executed
            raise asynchronous
        if statement.startswith("SELECT"):
            # An unbuffered cursor knows the number of rows only when all of them are read.
            return len((result if hasattr(result, "fetchall") else cursor).fetchall())
        return int(getattr(result, "rowcount", getattr(cursor, "rowcount", -1)))

    return run
