"""One owner at a time, and a stale one cannot get past the epoch (invariant 8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import trio.testing

from escapement.broker.lease_keeper import LeaseKeeper
from escapement.errors import LeaseHeld, LeaseLost, StorageUnavailable
from escapement.storage import lease, schema
from escapement.storage.blocking import inline
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.lease import Identity, Lease, Recorded
from escapement.testing.clock import VirtualClock
from support.commit_pipelines import HandClock

ONE, TWO = Identity("id-1", "one"), Identity("id-2", "two")
HOUR_MS = 3_600_000


@pytest.fixture
def ready(engine: Engine) -> Engine:
    schema.migrate(engine)
    return engine


@pytest.fixture
def connection(ready: Engine) -> Iterator[Connection]:
    connection = ready.connect()
    yield connection
    connection.close()


def take(engine: Engine, who: Identity, duration_ms: int = HOUR_MS) -> Lease:
    return lease.acquire(engine, who, duration_ms, HandClock())


def passes(engine: Engine, connection: Connection, held: Lease) -> bool:
    connection.begin()
    try:
        lease.check(engine, connection, held)
        return True
    except LeaseLost:
        return False
    finally:
        connection.rollback()


def test_the_first_owner_finds_a_clean_start(ready: Engine, connection: Connection) -> None:
    held = take(ready, ONE)
    assert (held.epoch, held.was_clean) == (1, True)
    assert passes(ready, connection, held)


def test_another_broker_is_refused_and_told_who_holds_it(ready: Engine) -> None:
    take(ready, ONE)
    with pytest.raises(LeaseHeld, match=r"'one' \(id-1\) owns this log until .* another 3600 s"):
        take(ready, TWO)


def test_a_restart_takes_its_own_lease_at_once(ready: Engine, connection: Connection) -> None:
    before = take(ready, ONE)
    after = take(ready, ONE)
    assert (after.epoch, after.was_clean) == (2, False)
    assert not passes(ready, connection, before)
    assert passes(ready, connection, after)


def test_a_lease_that_ran_out_is_taken_over(ready: Engine, connection: Connection) -> None:
    """By the database's clock: a duration in the past has run out for everyone."""
    before = take(ready, ONE, duration_ms=-1)
    assert passes(ready, connection, before), "nobody has taken it: the epoch decides"
    after = take(ready, TWO)
    assert after.epoch == 2
    assert not passes(ready, connection, before)
    with pytest.raises(LeaseLost, match="'two' has it with epoch 2"):
        lease.renew(ready, connection, before, HandClock())


def test_a_renewal_counts_from_before_it_was_sent(ready: Engine, connection: Connection) -> None:
    clock = HandClock(5_000)
    held = lease.acquire(ready, ONE, 10_000, clock)
    assert held.deadline_ms == 15_000
    clock.now = 9_000
    assert lease.renew(ready, connection, held, clock).deadline_ms == 19_000
    with pytest.raises(LeaseHeld):
        take(ready, TWO)


def test_a_renewal_revives_a_lease_nobody_took(ready: Engine, connection: Connection) -> None:
    held = take(ready, ONE, duration_ms=-1)
    lease.renew(ready, connection, replace(held, duration_ms=HOUR_MS), HandClock())
    with pytest.raises(LeaseHeld):
        take(ready, TWO)


@pytest.mark.parametrize("clean", [True, False])
def test_a_released_lease_is_free_and_says_how_it_ended(
    ready: Engine, connection: Connection, clean: bool
) -> None:
    lease.release(ready, connection, take(ready, ONE), clean=clean)
    after = take(ready, TWO)
    assert (after.epoch, after.was_clean) == (2, clean)


def test_a_stale_owner_cannot_release(ready: Engine, connection: Connection) -> None:
    before = take(ready, ONE)
    take(ready, ONE)
    with pytest.raises(LeaseLost):
        lease.release(ready, connection, before, clean=True)
    with pytest.raises(LeaseHeld):
        take(ready, TWO)


def test_a_taker_ends_the_transaction_its_predecessor_hangs_in(ready: Engine) -> None:
    """It has passed the check and holds the lease row: a taker would wait for it."""
    held = take(ready, ONE)
    hanging = ready.connect()
    Recorded(ready, held).enter(hanging)
    if ready.kind == "sqlite":
        hanging.close()  # one process at a time: it is gone with its process
        assert take(ready, ONE).epoch == 2
        return
    hanging.begin()
    lease.check(ready, hanging, held)
    assert take(ready, ONE).epoch == 2
    with pytest.raises(StorageUnavailable):
        hanging.execute("UPDATE leases SET epoch = 9")
    hanging.close()


def test_a_reconnected_connection_takes_the_place_of_the_one_before(
    ready: Engine, connection: Connection
) -> None:
    recorded = Recorded(ready, take(ready, ONE))
    other = ready.connect()
    recorded.enter(connection)
    recorded.enter(other, replaces=connection.id)
    ((text,),) = connection.execute("SELECT connection_ids FROM leases").rows
    assert text == (str(other.id) if other.id else "")
    other.close()
    take(ready, ONE)
    with pytest.raises(LeaseLost):
        recorded.enter(connection)


def test_what_an_owner_left_doubtful_is_told_to_the_next(
    ready: Engine, connection: Connection
) -> None:
    """Also after a crash in between."""
    assert take(ready, ONE).delivered_until_ms(1_000_000) == 0
    lease.release(ready, connection, take(ready, ONE), clean=True, doubtful_until_ms=77)
    assert take(ready, TWO).delivered_until_ms(1_000_000) == 77
    assert take(ready, TWO).delivered_until_ms(1_000_000) == 1_000_000


async def test_a_clock_set_back_is_noted_before_the_next_renewal(
    ready: Engine, connection: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    """Invariant 6: also where the clock still is past the last renewal when its owner dies."""
    clock = VirtualClock(2_000_000)
    held = lease.acquire(ready, ONE, 10_000, clock)
    keeper = LeaseKeeper(ready, held, clock, inline, lambda: None, lambda error: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        await trio.sleep(6)  # renewed after 3.3 s
        clock.set_back(1_000)
        await trio.sleep(0.3)
        nursery.cancel_scope.cancel()
    keeper.close()
    again = lease.acquire(ready, ONE, 10_000, clock)
    assert 2_005_000 < clock.now_ms() < 2_006_000
    assert again.delivered_until_ms(clock.now_ms()) >= 2_006_000
    clock.set_back(-60_000)
    once_more = lease.acquire(ready, ONE, 10_000, clock)
    assert once_more.delivered_until_ms(clock.now_ms()) == clock.now_ms()


def test_what_was_delivered_before_the_clock_was_set_back_is_doubtful(
    ready: Engine, connection: Connection
) -> None:
    """Invariant 6: as far as its owner may have come after it was last seen."""
    clock = HandClock(2_000_000)
    held = lease.acquire(ready, ONE, 10_000, clock)
    clock.now = 2_003_000
    lease.renew(ready, connection, held, clock)
    clock.now = 500_000
    again = lease.acquire(ready, ONE, 10_000, clock)
    assert not again.was_clean
    assert again.delivered_until_ms(500_000) == 2_013_000
    lease.renew(ready, connection, again, clock)
    once_more = lease.acquire(ready, ONE, 10_000, clock)
    assert once_more.delivered_until_ms(500_000) == 2_013_000
    assert once_more.delivered_until_ms(2_004_000) == 2_004_000
    lease.release(ready, connection, once_more, clean=True, doubtful_until_ms=77)
    assert lease.acquire(ready, TWO, 10_000, clock).delivered_until_ms(500_000) == 77
