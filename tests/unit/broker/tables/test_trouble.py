"""Problems of tables that end and begin again."""

from __future__ import annotations

import logging

import pytest

from escapement.broker.tables.trouble import Problems
from escapement.errors import StorageError


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    caplog.clear()
    return found


def test_problem_that_ends_and_begins_again_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    problems = Problems("shop", clock)
    for number in range(590):
        clock.now_s += 0.1
        problems.note("row", StorageError(f"row {number}"), "mails")
        problems.end("row", "mails")
    assert logged(caplog) == ["messages of table mails wait: row 0"]
    problems.note("row", StorageError("another table"), "texts")
    assert len(logged(caplog)) == 1
    clock.now_s += 2
    problems.note("row", StorageError("again"), "mails")
    assert logged(caplog) == ["messages of table mails wait: again"]


def test_problem_that_lasts_is_logged_after_the_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    problems = Problems("shop", clock)
    problems.note("poll", StorageError("locked"), "mails")
    problems.end("poll", "mails")
    logged(caplog)
    for _ in range(50):
        clock.now_s += 1
        problems.note("poll", StorageError("locked again"), "mails")
    assert logged(caplog) == []
    for _ in range(50):
        clock.now_s += 1
        problems.note("poll", StorageError("locked again"), "mails")
    assert len(logged(caplog)) == 1
