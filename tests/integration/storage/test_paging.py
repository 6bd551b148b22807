"""Reading of rows in the order of a key, and lists of values."""

from __future__ import annotations

from itertools import product

import pytest

from escapement.storage.engine.base import Engine
from escapement.storage.engine.paging import pages
from escapement.storage.engine.value_lists import in_list, padded

COLUMNS = ("a", "b", "c", "d")


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_pages_have_each_row_after_a_key_once_and_in_order(engine: Engine, width: int) -> None:
    key = COLUMNS[:width]
    rows = list(product(range(3), repeat=width))
    connection = engine.connect()
    columns = ", ".join(f"{name} BIGINT NOT NULL" for name in key)
    connection.execute(
        f"CREATE TABLE things ({columns}, v BIGINT, PRIMARY KEY ({', '.join(key)}))"
        f"{engine.dialect.table_end}"
    )
    connection.begin()
    marks = ", ".join("?" * width)
    connection.execute_many(
        f"INSERT INTO things ({', '.join(key)}, v) VALUES ({marks}, 7)", list(reversed(rows))
    )
    connection.commit()
    for page_rows in (1, 2, 5, len(rows), len(rows) + 1):
        for after in ((), (0,), (1, 2)[:width], rows[0], rows[len(rows) // 2], rows[-1]):
            found = pages(
                connection, "things", key, f"{', '.join(key)}, v", page_rows, after, "v = ?", (7,)
            )
            later = [row for row in rows if not after or row[: len(after)] > after]
            assert [row[:-1] for row in found] == later
    connection.close()


def test_lists_have_a_power_of_two_of_values() -> None:
    assert list(padded([], 4)) == []
    assert list(padded([1, 2, 3], 4)) == [[1, 2, 3, 3]]
    assert list(padded([1, 2, 3, 4, 5], 4)) == [[1, 2, 3, 4], [5]]
    assert in_list(["x", "y"]) == "IN (?, ?)"
