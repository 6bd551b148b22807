"""The CREATE TABLE of a message table, as text."""

from __future__ import annotations

import pytest

from escapement.errors import InvalidRequest, TableRejected
from escapement.tables.ddl import MAX_TABLE_NAME, create_statement
from escapement.tables.directives import Directives, Spelling, parse_comment
from support.database.message_tables import comment_of

DIRECTIVES = Directives(
    ack_wait_ms=1500,
    min_backoff_ms=1000,
    max_backoff_ms=None,
    purge_after_ms=0,
    batch_size=7,
    cache_size=70,
    poll_interval_ms=250,
)


@pytest.mark.parametrize("spelling", ["escapement", "vitess"])
def test_statement_has_the_directives_in_its_comment(spelling: Spelling) -> None:
    text = create_statement("mails", DIRECTIVES, spelling)
    comment = comment_of(text.replace("COMMENT='", "comment '"))
    assert parse_comment(comment, "mails") == (spelling, DIRECTIVES, ())


@pytest.mark.parametrize("name", ["", "my table", "a`b", "a'b", "a/b", "é", "."])
def test_name_that_cannot_be_a_topic_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be a topic name"):
        create_statement(name, DIRECTIVES)


def test_name_longer_than_a_table_may_have_is_refused() -> None:
    assert create_statement("m" * MAX_TABLE_NAME, DIRECTIVES)
    with pytest.raises(TableRejected, match="65 characters"):
        create_statement("m" * (MAX_TABLE_NAME + 1), DIRECTIVES)


def test_directives_that_would_be_rejected_are_refused() -> None:
    wrong = Directives(
        ack_wait_ms=2000,
        min_backoff_ms=2000,
        max_backoff_ms=1000,
        purge_after_ms=0,
        batch_size=1,
        cache_size=1,
        poll_interval_ms=1,
    )
    with pytest.raises(TableRejected, match="max_backoff"):
        create_statement("mails", wrong)
