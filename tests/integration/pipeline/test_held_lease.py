"""The leases that a job holds beside no broker, on a server that closes silent connections."""

from __future__ import annotations

import time

import pytest

from escapement.pipeline.rebuilding import held_lease as jobs
from escapement.storage import lease, schema
from escapement.storage.engine.base import Engine
from escapement.storage.lease import Identity
from support.storage.commit_pipelines import HandClock

JOB, BROKER = Identity("id-1", "job"), Identity("id-2", "broker")


@pytest.fixture
def ready(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    schema.migrate(engine)
    monkeypatch.setattr(jobs, "_LEASE_MS", 1000)
    return engine


@pytest.mark.parametrize("engine", ["mysql"], indirect=True)
def test_broker_takes_over_from_a_job_that_was_stopped_in_a_transaction(ready: Engine) -> None:
    """No broker knows the connections of a job, so none can kill them."""
    with (
        jobs.held_lease(ready, JOB, HandClock()) as renewal,
        renewal.connection.use() as stopped,
    ):
        stopped.begin()
        stopped.execute("UPDATE brokers SET load_per_s = 7 WHERE owner_id = ?", (JOB.owner_id,))
        lease.check(ready, stopped, renewal.leases[0])
        time.sleep(1.5)  # the lease expires by the clock of the server
        assert lease.acquire(ready, BROKER, 10_000, HandClock()).epoch == 2


@pytest.mark.parametrize("engine", ["mysql"], indirect=True)
def test_job_that_works_for_long_between_two_renewals_renews_and_releases(ready: Engine) -> None:
    with jobs.held_lease(ready, JOB, HandClock()) as renewal:
        time.sleep(2.5)
        renewal.at_once()
        time.sleep(2.5)
    with jobs.held_lease(ready, BROKER, HandClock()) as renewal:
        assert renewal.leases[0].was_clean
