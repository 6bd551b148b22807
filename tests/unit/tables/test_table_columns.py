"""The check of a message table's columns and keys, without a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from escapement.errors import TableRejected
from escapement.tables.columns import Column, Index, Layout, check_columns

CURRENT: Final = ("id", "priority", "epoch", "time_next", "time_acked")
FIRST: Final = ("time_scheduled", "id", "time_next", "epoch", "time_created", "time_acked")
PRIMARY: Final = Index("PRIMARY", True, ("id",))


def column(name: str, data_type: str = "bigint") -> Column:
    return Column(
        name,
        data_type,
        data_type,
        is_nullable=name.lower() != "id",
        is_generated=False,
    )


def columns(*names: str) -> list[Column]:
    return [column(name) for name in names]


def replaced(name: str, **changes: object) -> list[Column]:
    """Return the columns of the current edition, one of them changed."""
    return [
        one._replace(**changes) if one.name == name else one  # type: ignore[arg-type]
        for one in columns(*CURRENT)
    ]


def check(found: Sequence[Column], *indexes: Index) -> Layout:
    return check_columns("mails", found, indexes or (PRIMARY,))


def refusal(found: Sequence[Column], *indexes: Index) -> str:
    with pytest.raises(TableRejected) as caught:
        check(found, *indexes)
    return str(caught.value)


def test_further_columns_keep_their_order() -> None:
    """V8: the layout of the current edition."""
    layout = check(columns("note", *CURRENT, "message", "tenant_id"))
    assert (layout.edition, layout.id.name) == ("current", "id")
    assert [one.name for one in layout.further] == ["note", "message", "tenant_id"]
    assert layout.primary_key == ("id",)


def test_table_without_priority_is_of_the_first_edition() -> None:
    """V8: the layout of the first edition."""
    key = Index("PRIMARY", True, ("time_scheduled", "id"))
    layout = check(columns(*FIRST, "message"), key, Index("id_idx", True, ("id",)))
    assert layout.edition == "first"
    assert [one.name for one in layout.further] == ["message"]
    assert layout.primary_key == ("time_scheduled", "id")


def test_table_with_priority_and_time_scheduled_is_of_the_current_edition() -> None:
    layout = check(columns(*FIRST, "priority"))
    assert layout.edition == "current"
    assert [one.name for one in layout.further] == ["time_scheduled", "time_created"]


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        *((CURRENT, name) for name in CURRENT),
        *((FIRST, name) for name in FIRST if name != "time_scheduled"),
    ],
)
def test_missing_column_is_named(names: tuple[str, ...], missing: str) -> None:
    said = refusal(columns(*(name for name in names if name != missing)))
    assert said.startswith(f"Table mails has no column {missing}. ALTER TABLE `mails` ADD COLUMN")


def test_names_of_columns_are_compared_without_case() -> None:
    layout = check(columns(*(name.upper() for name in CURRENT)), Index("PRIMARY", True, ("ID",)))
    assert layout.id.name == "ID"
    assert layout.further == ()


@pytest.mark.parametrize(
    ("name", "data_type"),
    [
        *(("time_next", bad) for bad in ("int", "datetime", "timestamp", "decimal", "double")),
        *(("time_acked", bad) for bad in ("int", "datetime", "varchar")),
        *(("epoch", bad) for bad in ("tinyint", "smallint", "float", "varchar")),
        *(("priority", bad) for bad in ("varchar", "decimal", "enum", "float")),
    ],
)
def test_type_that_cannot_hold_the_values_is_refused(name: str, data_type: str) -> None:
    said = refusal(replaced(name, data_type=data_type))
    assert said.startswith(f"Column {name} of table mails has the type {data_type}, which cannot")
    assert f"MODIFY COLUMN `{name}` " in said


@pytest.mark.parametrize(
    ("name", "data_type"),
    [
        *(("id", good) for good in ("varchar", "binary", "char", "decimal", "int", "uuid")),
        *(("priority", good) for good in ("tinyint", "smallint", "int")),
        *(("epoch", good) for good in ("mediumint", "int")),
    ],
)
def test_type_that_can_hold_the_values_is_accepted(name: str, data_type: str) -> None:
    assert check(replaced(name, data_type=data_type)).edition == "current"


@pytest.mark.parametrize("name", ["epoch", "time_next", "time_acked"])
def test_generated_column_is_refused_if_the_broker_writes_it(name: str) -> None:
    assert "is generated" in refusal(replaced(name, is_generated=True))


def test_id_and_priority_may_be_generated() -> None:
    for name in ("id", "priority"):
        assert check(replaced(name, is_generated=True)).edition == "current"


@pytest.mark.parametrize("name", ["time_next", "time_acked"])
def test_times_must_allow_null(name: str) -> None:
    assert f"Column {name} of table mails is NOT NULL" in refusal(replaced(name, is_nullable=False))


@pytest.mark.parametrize(
    "indexes",
    [
        [Index("id", False, ("id",))],
        [Index("PRIMARY", True, ("id", "priority"))],
        [Index("PRIMARY", True, ("time_next", "id")), Index("id", False, ("id",))],
    ],
)
def test_id_must_be_unique_by_itself(indexes: list[Index]) -> None:
    assert "Column id of table mails is not unique" in refusal(columns(*CURRENT), *indexes)


def test_unique_id_that_may_be_null_is_refused() -> None:
    said = refusal(replaced("id", is_nullable=True), Index("id", True, ("id",)))
    assert said.endswith("MODIFY COLUMN `id` bigint NOT NULL.")


def test_table_without_a_primary_key_needs_only_a_unique_id() -> None:
    assert check(columns(*CURRENT), Index("id", True, ("id",))).primary_key == ()
