"""Marks for deleted things, on both databases."""

from __future__ import annotations

from escapement.storage import removal
from escapement.storage.engine.base import Connection


def test_marks_of_a_kind_are_listed_once_each_in_ascending_order(connection: Connection) -> None:
    """Q7: things of different kinds may have the same id."""
    for id in (7, 3, 7, 12):
        removal.mark(connection, "topic", id)
    removal.mark(connection, "lag", 3)
    assert removal.marked(connection, "topic") == [3, 7, 12]
    assert removal.marked(connection, "lag") == [3]
    assert removal.marked(connection, "subscription") == []


def test_mark_stays_until_its_own_rows_are_deleted(connection: Connection) -> None:
    """Q7."""
    for kind, id in (("topic", 3), ("topic", 4), ("lag", 3)):
        removal.mark(connection, kind, id)
    removal.done(connection, "topic", 3)
    removal.done(connection, "topic", 3)  # again, after a crash
    assert removal.marked(connection, "topic") == [4]
    assert removal.marked(connection, "lag") == [3]


def test_mark_of_a_transaction_that_fails_is_not_there(connection: Connection) -> None:
    """Q7: a topic that was not deleted keeps its rows."""
    removal.mark(connection, "topic", 3)
    connection.begin()
    removal.mark(connection, "topic", 4)
    removal.done(connection, "topic", 3)
    connection.rollback()
    assert removal.marked(connection, "topic") == [3]
