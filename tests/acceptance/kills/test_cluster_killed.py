"""Kills and other faults of several brokers on one MariaDB, under load."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from stress.run import run_cluster
from support.processes.broker import START_TIMEOUT_S, BrokerProcess


def test_twenty_kills_of_two_brokers_break_no_promise() -> None:
    """P6, V1, V2, B1, B8, Q9: a broker is killed at each failpoint, and bundles move.

    Nothing is lost, early, or delivered after a confirmed acknowledgement or cancel, and a message
    is only repeated if it was in flight.
    """
    once = ("rolling restart",)
    assert run_cluster(2, kills=20, seed=7, once=once, others=(), longest_ms=4_000) == 0


@pytest.mark.long
def test_three_hundred_kills_of_three_brokers_break_no_promise() -> None:
    """P6, V1, V2, B1, B8, Q9: with every other fault in between."""
    assert run_cluster(3, kills=300, seed=11) == 0


def test_broker_killed_in_a_migration_migrates_the_rest_at_its_next_start(
    tmp_path: Path, mysql_url: str
) -> None:
    """P6, O9: MySQL has no transactions around changes of tables."""
    broker = BrokerProcess(tmp_path / "broker", mysql_url)
    try:
        for number in (3, 20):
            broker.failpoints = f"migration=kill@{number}"
            broker.launch()
            assert broker.process.wait(START_TIMEOUT_S) == -signal.SIGKILL
        broker.failpoints = ""
        broker.start()
        assert broker.stop() == 0
    finally:
        broker.remove()


def test_broker_does_not_start_with_a_failpoint_that_does_not_exist(tmp_path: Path) -> None:
    """A test with a typo in it would otherwise succeed without a fault."""
    broker = BrokerProcess(tmp_path / "broker")
    broker.failpoints = "after_comit=kill"
    broker.launch()
    assert broker.process.wait(START_TIMEOUT_S) == 1
    assert "there is no failpoint 'after_comit'" in broker.complaints()
