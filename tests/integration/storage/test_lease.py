"""The lease: one owner at a time, and the epoch fences stale owners (invariant 8)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
import trio.testing

from escapement.broker.membership import Membership
from escapement.errors import LeaseHeld, LeaseLost, StorageUnavailable
from escapement.storage import lease, members, schema
from escapement.storage.blocking import inline
from escapement.storage.engine.base import Connection, Engine, TransactionAborted
from escapement.storage.lease import Identity, Lease
from escapement.testing.clock import VirtualClock
from support.storage.commit_pipelines import FaultyEngine, HandClock

ONE, TWO, THREE = Identity("id-1", "one"), Identity("id-2", "two"), Identity("id-3", "three")
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


def acquire(engine: Engine, identity: Identity, duration_ms: int = HOUR_MS) -> Lease:
    return lease.acquire(engine, identity, duration_ms, HandClock())


def check_passes(engine: Engine, connection: Connection, held: Lease) -> bool:
    connection.begin()
    try:
        lease.check(engine, connection, held)
        return True
    except LeaseLost:
        return False
    finally:
        connection.rollback()


def test_first_lease_has_epoch_1_and_was_clean(ready: Engine, connection: Connection) -> None:
    held = acquire(ready, ONE)
    assert (held.epoch, held.was_clean) == (1, True)
    assert check_passes(ready, connection, held)


def test_another_broker_is_refused_and_told_who_holds_it(ready: Engine) -> None:
    acquire(ready, ONE)
    held = r"broker 'one' \(id-1\) owns bundle 0 until .* another 3600 s unless it renews$"
    with pytest.raises(LeaseHeld, match=held):
        acquire(ready, TWO)


def test_restarted_broker_reacquires_its_lease_at_once(
    ready: Engine, connection: Connection
) -> None:
    before = acquire(ready, ONE)
    after = acquire(ready, ONE)
    assert (after.epoch, after.was_clean) == (2, False)
    assert not check_passes(ready, connection, before)
    assert check_passes(ready, connection, after)


def test_expired_lease_is_taken_over(ready: Engine, connection: Connection) -> None:
    """The database's clock decides. A lease with a negative duration has already expired."""
    before = acquire(ready, ONE, duration_ms=-1)
    assert check_passes(ready, connection, before), (
        "the epoch is unchanged, so the lease is still valid"
    )
    after = acquire(ready, TWO)
    assert after.epoch == 2
    assert not check_passes(ready, connection, before)
    with pytest.raises(LeaseLost, match="'two' has it with epoch 2"):
        lease.renew(ready, connection, before, HandClock())


def test_renewal_counts_from_before_the_request(ready: Engine, connection: Connection) -> None:
    clock = HandClock(5_000)
    held = lease.acquire(ready, ONE, 10_000, clock)
    assert held.deadline_ms == 15_000
    clock.now = 9_000
    assert lease.renew(ready, connection, held, clock).deadline_ms == 19_000
    with pytest.raises(LeaseHeld):
        acquire(ready, TWO)


def test_expired_lease_can_be_renewed_if_no_other_broker_took_it(
    ready: Engine, connection: Connection
) -> None:
    held = acquire(ready, ONE, duration_ms=-1)
    held.member.duration_ms = HOUR_MS
    lease.renew(ready, connection, held, HandClock())
    with pytest.raises(LeaseHeld):
        acquire(ready, TWO)


@pytest.mark.parametrize("clean", [True, False])
def test_released_lease_is_free_and_records_whether_it_ended_cleanly(
    ready: Engine, connection: Connection, clean: bool
) -> None:
    lease.release(ready, connection, acquire(ready, ONE), clean=clean)
    after = acquire(ready, TWO)
    assert (after.epoch, after.was_clean) == (2, clean)


def test_a_stale_owner_cannot_release(ready: Engine, connection: Connection) -> None:
    before = acquire(ready, ONE)
    acquire(ready, ONE)
    with pytest.raises(LeaseLost):
        lease.release(ready, connection, before, clean=True)
    with pytest.raises(LeaseHeld):
        acquire(ready, TWO)


def test_bundle_that_its_process_let_go_is_free_and_its_deliveries_are_doubtful(
    ready: Engine, connection: Connection
) -> None:
    """Invariants 6 and 8: its wall clock was ahead of the next owner's."""
    held = acquire(ready, ONE)
    hanging = ready.connect()
    lease.enter(ready, hanging, held)
    if ready.kind == "mysql":  # a lost connection of the ended broker still locks the row
        hanging.begin()
        lease.check(ready, hanging, held)
    assert lease.let_go(ready, held.member, 0, seen_ms=2_000_000)
    hanging.close()
    assert check_passes(ready, connection, held), "the epoch is unchanged"
    after = lease.acquire(ready, TWO, 10_000, HandClock(1_000_000))
    assert (after.epoch, after.was_clean) == (2, False)
    assert after.delivered_until_ms(1_000_000) == 2_010_000
    assert not check_passes(ready, connection, held)
    assert not lease.let_go(ready, held.member, 0, seen_ms=2_000_000)
    with pytest.raises(LeaseHeld):
        acquire(ready, ONE)


def test_acquire_kills_a_hanging_transaction_of_the_previous_owner(ready: Engine) -> None:
    """The transaction holds the lease row, so acquiring would otherwise wait for it."""
    held = acquire(ready, ONE)
    hanging = ready.connect()
    lease.enter(ready, hanging, held)
    if ready.kind == "sqlite":
        hanging.close()  # SQLite serves one process, whose end closes the connection
        assert acquire(ready, ONE).epoch == 2
        return
    hanging.begin()
    lease.check(ready, hanging, held)
    assert acquire(ready, ONE).epoch == 2
    with pytest.raises(StorageUnavailable):
        hanging.execute("UPDATE leases SET epoch = 9")
    hanging.close()


def test_take_over_starts_again_if_another_broker_took_the_bundle_and_died_meanwhile(
    ready: Engine, connection: Connection
) -> None:
    """Invariant 8: the connections of that broker must end, and not only those of the first one."""
    acquire(ready, ONE, duration_ms=-1)

    class Meanwhile(HandClock):
        """Between the look at the owner and the take-over, another broker takes the bundle."""

        looks = 0

        def now_ms(self) -> int:
            self.looks += 1
            if self.looks == 1:
                held = acquire(ready, THREE, duration_ms=-1)
                lease.enter(ready, connection, held)
            return super().now_ms()

    clock = Meanwhile()
    with closing(ready.connect()) as own:
        member = members.register(ready, TWO, HOUR_MS, HandClock())
        taken = lease.take(ready, member, clock)
        assert check_passes(ready, own, taken)
    assert (taken.epoch, taken.former_owner_id) == (3, "id-3")
    assert clock.looks == 2
    if ready.kind == "mysql":  # SQLite serves one process, whose end closes the connection
        with pytest.raises(StorageUnavailable):
            connection.execute("SELECT 1")


@pytest.mark.parametrize("locks", ["lease row", "row of the owner"])
@pytest.mark.parametrize("engine", ["mysql"], indirect=True)
def test_silent_transaction_of_a_connection_that_is_not_listed_ends(
    ready: Engine, locks: str
) -> None:
    """The process was stopped in a checkpoint or a renewal, so nobody can kill the connection."""
    held = acquire(ready, ONE, duration_ms=0)
    with closing(ready.limited(silence_s=1).connect()) as silent:
        silent.begin()
        if locks == "lease row":
            lease.check(ready, silent, held)
        else:
            silent.execute("UPDATE brokers SET load_per_s = 7 WHERE owner_id = ?", (ONE.owner_id,))
        assert acquire(ready, TWO).epoch == 2
        with pytest.raises(StorageUnavailable):
            silent.execute("UPDATE leases SET epoch = 9")


@pytest.mark.parametrize("engine", ["mysql"], indirect=True)
def test_listed_and_reading_connections_may_be_silent(ready: Engine) -> None:
    """A successor kills a listed connection, and a reading one has no locks."""
    held = acquire(ready, ONE)
    limited = ready.limited(silence_s=1)
    with closing(limited.connect()) as listed, closing(limited.connect()) as reading:
        lease.enter(limited, listed, held)
        reading.snapshot()
        time.sleep(2.5)
        assert check_passes(ready, listed, held)
        assert reading.execute("SELECT epoch FROM leases").rows == [(1,)]


@pytest.mark.parametrize("engine", ["mysql"], indirect=True)
def test_renewal_and_commits_do_not_wait_for_each_other(
    ready: Engine, connection: Connection
) -> None:
    """A group commit waits for another session, with its lock on the lease row."""
    held = acquire(ready, ONE)
    with ExitStack() as stack:
        writer, other = (stack.enter_context(closing(ready.connect())) for _ in range(2))
        writer.begin()
        lease.check(ready, writer, held)
        connection.execute("SET innodb_lock_wait_timeout = 0")
        lease.renew(ready, connection, held, HandClock())
        # And while a renewal waits for its commit, the epoch is checked.
        writer.rollback()
        connection.begin()
        connection.execute("UPDATE brokers SET expires_at_ms = expires_at_ms + 1")
        other.execute("SET innodb_lock_wait_timeout = 0")
        assert check_passes(ready, other, held)
        connection.rollback()


@pytest.mark.parametrize("engine", ["mysql"], indirect=True)
def test_take_over_waits_for_a_transaction_that_has_checked_the_epoch(
    ready: Engine, connection: Connection
) -> None:
    """Invariant 8: the transaction may commit, but not after the epoch has been raised."""
    held = acquire(ready, ONE)
    connection.execute("SET innodb_lock_wait_timeout = 0")
    raises_epoch = "UPDATE leases SET epoch = epoch + 1"
    with closing(ready.connect()) as writer:
        writer.begin()
        lease.check(ready, writer, held)
        with pytest.raises(TransactionAborted):
            connection.execute(raises_epoch)
        writer.commit()
        connection.execute(raises_epoch)
        assert not check_passes(ready, writer, held)


def test_reconnected_connection_replaces_the_recorded_one(
    ready: Engine, connection: Connection
) -> None:
    held = acquire(ready, ONE)
    other = ready.connect()
    lease.enter(ready, connection, held)
    lease.enter(ready, other, held, replaces=[connection.id])
    lease.enter(ready, other, held)
    ((text,),) = connection.execute("SELECT connection_ids FROM brokers").rows
    assert text == (str(other.id) if other.id else "")
    other.close()
    acquire(ready, ONE)
    with pytest.raises(LeaseLost):
        lease.enter(ready, connection, held)


@pytest.mark.parametrize("engine", ["mysql"], indirect=True)
def test_lost_connection_stays_recorded_while_it_hangs_in_a_transaction(
    ready: Engine, connection: Connection
) -> None:
    """The process may be killed while it waits. Its successor must find the connection to kill."""
    held = acquire(ready, ONE)
    lease.enter(ready, connection, held)
    connection.begin()
    lease.check(ready, connection, held)
    with closing(ready.connect()) as other:
        with pytest.raises(TransactionAborted):
            lease.enter(ready, other, held, replaces=[connection.id])
        ((text,),) = other.execute("SELECT connection_ids FROM brokers").rows
        assert text == f"{connection.id},{other.id}"
        assert lease.take(ready, held.member, HandClock()).epoch == held.epoch + 1
    with pytest.raises(StorageUnavailable):
        connection.execute("SELECT 1")


def test_next_owner_learns_until_when_deliveries_are_doubtful(
    ready: Engine, connection: Connection
) -> None:
    """After a crash, all deliveries until now are doubtful."""
    assert acquire(ready, ONE).delivered_until_ms(1_000_000) == 0
    lease.release(ready, connection, acquire(ready, ONE), clean=True, doubtful_until_ms=77)
    assert acquire(ready, TWO).delivered_until_ms(1_000_000) == 77
    assert acquire(ready, TWO).delivered_until_ms(1_000_000) == 1_000_000


async def test_clock_set_back_is_recorded_before_the_next_renewal(
    ready: Engine, connection: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    """Invariant 6: even if the clock is still past the last renewal when the owner dies."""
    clock = VirtualClock(2_000_000)
    membership = Membership(ready, ONE, clock, inline, 10_000)
    membership.register()
    membership.take(0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(membership.run)
        await trio.sleep(6)  # renewed after 3.3 s
        clock.set_back(1_000)
        await trio.sleep(0.3)
        nursery.cancel_scope.cancel()
    membership.close()
    again = lease.acquire(ready, ONE, 10_000, clock)
    assert 2_005_000 < clock.now_ms() < 2_006_000
    assert again.delivered_until_ms(clock.now_ms()) >= 2_006_000
    clock.set_back(-60_000)
    once_more = lease.acquire(ready, ONE, 10_000, clock)
    assert once_more.delivered_until_ms(clock.now_ms()) == clock.now_ms()


async def test_renewals_that_keep_failing_are_logged_once_a_minute(
    ready: Engine, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    reason, armed = "read-only", False

    def fails(step: str) -> None:
        if armed and step.startswith("UPDATE brokers"):
            raise StorageUnavailable(reason)

    faulty = FaultyEngine(ready, fails)
    clock = VirtualClock(2_000_000)
    membership = Membership(faulty, ONE, clock, inline, 10_000)
    membership.register()
    armed = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(membership.run)
        await trio.sleep(55)
        reason = "out of reach"
        await trio.sleep(70)
        nursery.cancel_scope.cancel()
    membership.close()
    logged = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert logged == [
        f"cannot renew the lease: {why}" for why in ("read-only", "out of reach", "out of reach")
    ]


def test_deliveries_before_the_clock_was_set_back_are_doubtful(
    ready: Engine, connection: Connection
) -> None:
    """Invariant 6: doubtful until the last renewal plus the duration of the lease."""
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
