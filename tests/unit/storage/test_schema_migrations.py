"""The rules for the text of migrations."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from escapement.storage.schema import Migration, migrations

# An older broker may still own the database while a newer one migrates it. So statements only add
# tables and columns, and rows that the older broker inserts need no value for an added column.
ADDITION = re.compile(
    r"CREATE TABLE IF NOT EXISTS \w+ \("
    r"|ALTER TABLE \w+ ADD COLUMN \w+ (?!.*NOT NULL(?! DEFAULT))"
    r"|\{insert_ignore\} INTO (leases|shared_numbers)\b",
)
# Words that stay as they are, so that a statement still has its placeholders.
SAME = {
    word: f"{{{word}}}"
    for word in ("id_column", "blob", "name", "table_end", "now_ms", "insert_ignore")
}


@pytest.mark.parametrize("migration", migrations(), ids=lambda migration: migration.name)
def test_migration_only_adds_tables_and_columns(migration: Migration) -> None:
    statements = migration.statements(SAME)
    assert statements
    for statement in statements:
        assert ADDITION.match(statement), statement


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE topics",
        "ALTER TABLE topics DROP COLUMN policy",
        "ALTER TABLE topics ADD COLUMN extra BIGINT NOT NULL",
        "DELETE FROM leases",
    ],
)
def test_statement_that_breaks_an_older_broker_is_no_addition(statement: str) -> None:
    assert not ADDITION.match(statement)
    assert ADDITION.match("ALTER TABLE topics ADD COLUMN extra BIGINT NOT NULL DEFAULT 0")
    assert ADDITION.match("ALTER TABLE topics ADD COLUMN extra BIGINT")


@pytest.mark.parametrize("migration", migrations(), ids=lambda migration: migration.name)
def test_each_table_has_a_comment_that_names_the_module_that_owns_it(migration: Migration) -> None:
    """The module names the table too. Other modules that comments name exist."""
    package = files("escapement")
    comment: list[str] = []
    for line in migration.text.splitlines():
        if line.startswith("-- "):
            comment.append(line.removeprefix("-- "))
        elif table := re.match(r"CREATE TABLE IF NOT EXISTS (\w+)", line):
            owner = re.search(r"Owner: (\S+\.py)\.", " ".join(comment))
            assert owner, f"the comment of the table {table[1]} names no owner"
            assert f"``{table[1]}``" in package.joinpath(owner[1]).read_text(encoding="utf-8")
        elif not line:
            comment = []
    for path in re.findall(r"\w[\w/]*\.py", migration.text):
        assert package.joinpath(path).is_file(), path


def test_checksum_covers_the_statements_and_not_the_comments() -> None:
    migration = migrations()[0]
    other_comment = migration._replace(text=f"-- Another comment.\n\n{migration.text}")
    assert other_comment.checksum == migration.checksum
    other_column = migration._replace(text=migration.text.replace("epoch", "era"))
    assert other_column.checksum != migration.checksum
