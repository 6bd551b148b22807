"""Which processes are alive, and who may take a bundle from whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import pytest

from escapement.errors import (
    AddressTaken,
    EscapementError,
    LeaseHeld,
    LeaseLost,
    StorageUnavailable,
)
from escapement.storage import lease, members
from escapement.storage.bundles import set_bundle_count
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.lease import Identity, Lease
from escapement.storage.members import Member
from escapement.storage.ownership import LiveBroker, Ownership, look_at_all
from support.storage.commit_pipelines import FaultyEngine, HandClock

ONE, TWO = Identity("id-1", "one", "here"), Identity("id-2", "two", "there")
HOUR_MS = 3_600_000
# The server's list of transactions is a copy, as long as it is read more often than each 0.1 s.
_LOOK_S = 0.11


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def joined(
    engine: Engine, identity: Identity, clock: HandClock, duration_ms: int = HOUR_MS
) -> Member:
    return members.register(engine, identity, duration_ms, clock, f"{identity.name}:7650")


def is_fenced(engine: Engine, connection: Connection, held: Lease) -> bool:
    try:
        with lease.as_owner(engine, connection, held):
            return False
    except LeaseLost:
        return True


class Beside:
    """Work in another thread, which begins when the engine sees a statement.

    The statement waits until the work waits for a lock, or has ended.
    """

    def __init__(self, engine: Engine, statement: str, work: Callable[[], Any]) -> None:
        self.result: Any = None
        self.waited = False
        self._observer = engine
        self._statement = statement
        self._work = work
        self._thread: threading.Thread | None = None
        self.engine = FaultyEngine(engine, self._before)

    def _run(self) -> None:
        try:
            self.result = self._work()
        except EscapementError as error:
            self.result = error

    def _before(self, step: str) -> None:
        if self._thread is not None or not step.startswith(self._statement):
            return
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        sql = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        with closing(self._observer.connect()) as observer:
            while self._thread.is_alive() and not self.waited:
                time.sleep(_LOOK_S)
                self.waited = observer.execute(sql).rows[0][0] > 0

    def end(self) -> Any:
        assert self._thread is not None, "the statement was never sent"
        self._thread.join()
        return self.result


@pytest.mark.parametrize("engine", ["mysql"], indirect=True)
@pytest.mark.parametrize("missing", [False, True])
def test_renewal_during_a_take_over_sees_the_new_epoch(
    engine: Engine, connection: Connection, clock: HandClock, missing: bool
) -> None:
    """Otherwise the renewal succeeds with the old epoch, and two brokers deliver."""
    owner = joined(engine, ONE, clock, -1)
    held = lease.take(engine, owner, clock)
    if missing:
        connection.execute("DELETE FROM brokers")
    beside = Beside(
        engine, "SELECT 1 FROM leases", lambda: members.renew(engine, connection, owner, clock)
    )
    taken = lease.take(beside.engine, joined(engine, TWO, clock), clock)
    renewal = beside.end()
    assert beside.waited
    assert renewal.leases == {0: (taken.epoch, "two")}
    with closing(engine.connect()) as other:
        assert is_fenced(engine, other, held)


@pytest.mark.parametrize("engine", ["mysql"], indirect=True)
def test_take_over_waits_for_a_renewal_in_progress_and_is_refused(
    engine: Engine, connection: Connection, clock: HandClock
) -> None:
    owner = joined(engine, ONE, clock, -1)
    held = lease.take(engine, owner, clock)
    owner.duration_ms = HOUR_MS
    other = joined(engine, TWO, clock)
    beside = Beside(engine, "SELECT bundle_id, epoch", lambda: lease.take(engine, other, clock))
    with closing(beside.engine.connect()) as renewing:
        renewal = members.renew(beside.engine, renewing, owner, clock)
    assert isinstance(beside.end(), LeaseHeld)
    assert beside.waited
    assert renewal.leases == {0: (held.epoch, "one")}
    assert not is_fenced(engine, connection, held)


def test_copy_of_a_data_directory_is_refused_while_the_original_lives(
    engine: Engine, connection: Connection, clock: HandClock
) -> None:
    """A restart at the same place takes over at once, because the place has a lock."""
    copy = replace(ONE, name="copy", place="elsewhere")
    first = lease.acquire(engine, ONE, HOUR_MS, clock)
    with pytest.raises(
        LeaseHeld, match=r"'one' runs with the same identity \(id-1\) until .* 3600"
    ):
        joined(engine, copy, clock)
    assert not is_fenced(engine, connection, first)
    again = lease.acquire(engine, ONE, -1, clock)
    assert (again.epoch, is_fenced(engine, connection, first)) == (2, True)
    with pytest.raises(LeaseLost, match="another process with its identity"):
        members.renew(engine, connection, first.member, clock)
    assert lease.acquire(engine, copy, HOUR_MS, clock).epoch == 3


def test_process_that_was_replaced_takes_and_lists_nothing(
    engine: Engine, connection: Connection, clock: HandClock
) -> None:
    before = joined(engine, ONE, clock)
    now = joined(engine, ONE, clock)
    with pytest.raises(LeaseLost):
        lease.take(engine, before, clock)
    with pytest.raises(LeaseLost):
        members.record(engine, connection, before, 0)
    members.leave(connection, before)
    assert lease.take(engine, now, clock).epoch == 1


def test_another_broker_takes_the_bundles_that_a_restarted_one_left(
    engine: Engine, connection: Connection, clock: HandClock
) -> None:
    """The lease names the incarnation before, so it is free although the owner's row is valid."""
    set_bundle_count(engine, 2)
    first = joined(engine, ONE, clock)
    for bundle_id in range(2):
        lease.take(engine, first, clock, bundle_id)
    now, other = joined(engine, ONE, clock), joined(engine, TWO, clock)
    assert lease.take(engine, now, clock, 0).epoch == 2
    assert lease.take(engine, other, clock, 1).epoch == 2
    with pytest.raises(LeaseHeld, match="'one'"):
        lease.take(engine, other, clock, 0)


def test_deliveries_of_a_replaced_incarnation_stay_doubtful(
    engine: Engine, connection: Connection, clock: HandClock
) -> None:
    """Invariant 6: its row is overwritten, and the clock is set back before a bundle is taken."""
    set_bundle_count(engine, 2)
    first = joined(engine, ONE, clock)
    for bundle_id in range(2):
        lease.take(engine, first, clock, bundle_id)
    clock.now = 5_000_000
    members.renew(engine, connection, first, clock)
    clock.now = 2_000_000
    later = joined(engine, ONE, clock)
    members.leave(connection, later)  # its row goes, too
    assert connection.execute("SELECT COUNT(*) FROM brokers").rows == [(0,)]
    taken = lease.take(engine, joined(engine, TWO, clock), clock, 1)
    assert not taken.was_clean
    assert taken.delivered_until_ms(2_000_000) == 5_000_000 + HOUR_MS


@pytest.mark.parametrize("engine", ["mysql"], indirect=True)
def test_connections_of_all_bundles_of_a_dead_process_are_killed(
    engine: Engine, connection: Connection, clock: HandClock
) -> None:
    """By whoever takes one of its bundles. Those of a live process stay open."""
    set_bundle_count(engine, 3)
    dead, live = joined(engine, ONE, clock), joined(engine, TWO, clock)
    leases = [lease.take(engine, dead, clock, 0), lease.take(engine, dead, clock, 1)]
    leases.append(lease.take(engine, live, clock, 2))
    opened = [engine.connect() for _ in leases]
    for held, writer in zip(leases, opened, strict=True):
        lease.enter(engine, writer, held)
        writer.begin()
        lease.check(engine, writer, held)
    connection.execute("UPDATE brokers SET expires_at_ms = 0 WHERE owner_id = 'id-1'")
    assert lease.take(engine, live, clock, 0).epoch == 2
    for writer in opened[:2]:
        with pytest.raises(StorageUnavailable):
            writer.execute("SELECT 1")
    lease.release(engine, connection, leases[1], clean=True)
    opened[2].rollback()
    lease.release(engine, connection, leases[2], clean=True)
    assert lease.take(engine, joined(engine, ONE, clock), clock, 2).epoch == 2
    opened[2].execute("SELECT 1")
    for writer in opened:
        writer.close()


def test_broker_of_the_version_before_works_on_a_table_with_loads_and_versions(
    engine: Engine, connection: Connection, clock: HandClock
) -> None:
    """O9: it neither inserts nor updates the columns, so its load and its version are unknown."""
    connection.execute(
        "INSERT INTO brokers (owner_id, incarnation, name, place, address, expires_at_ms, seen_ms,"
        " draining, connection_ids) VALUES ('id-1', 'i', 'one', 'here', '', 0, 0, 0, '')"
    )
    now_ms = engine.dialect.now_ms
    connection.execute(f"UPDATE brokers SET expires_at_ms = {now_ms} + 10000")
    older = look_at_all(engine, connection)[0]["id-1"]
    assert (older.load_per_s, older.version) == (0, "")
    newer = joined(engine, ONE, clock)
    members.renew(engine, connection, newer, clock, load_per_s=2**40)
    found = look_at_all(engine, connection)[0]["id-1"]
    assert (found.load_per_s, found.version) == (2**40, version("escapement"))


def test_brokers_and_bundles_are_listed_together(
    engine: Engine, connection: Connection, clock: HandClock
) -> None:
    set_bundle_count(engine, 3)
    one, dead = joined(engine, ONE, clock), joined(engine, TWO, clock, -1)
    first = lease.take(engine, one, clock, 0)
    lease.take(engine, dead, clock, 1)
    members.renew(engine, connection, one, clock, draining=True, load_per_s=12)
    brokers, bundles = look_at_all(engine, connection)
    left_ms = brokers["id-1"].left_ms
    assert HOUR_MS - 60_000 < left_ms <= HOUR_MS
    assert brokers == {
        "id-1": LiveBroker(
            "id-1", one.incarnation, "one", "one:7650", True, left_ms, 12, version("escapement")
        )
    }
    assert bundles == {
        0: Ownership(0, "id-1", one.incarnation, 1, False),
        1: Ownership(1, "id-2", dead.incarnation, 1, True),
        2: Ownership(2, "", "", 0, True),
    }
    lease.release(engine, connection, first, clean=True)
    assert look_at_all(engine, connection)[1][0] == Ownership(0, "id-1", "", 1, True)


def test_row_of_a_process_that_left_stays_while_a_lease_names_it(
    engine: Engine, connection: Connection, clock: HandClock
) -> None:
    """The next owner needs the last time at which the process was alive."""
    one = joined(engine, ONE, clock)
    lease.take(engine, one, clock)
    members.leave(connection, one)
    assert look_at_all(engine, connection)[1][0].free
    assert connection.execute("SELECT owner_id FROM brokers").rows == [("id-1",)]
    two = joined(engine, TWO, clock)  # an hour later, the row would go if no lease named it
    assert connection.execute("SELECT COUNT(*) FROM brokers").rows == [(2,)]
    lease.take(engine, two, clock)
    joined(engine, Identity("id-3", "three"), clock)
    named = "SELECT owner_id FROM brokers ORDER BY owner_id"
    assert connection.execute(named).rows == [("id-2",), ("id-3",)]


class OlderBroker:
    """What a broker before migration 15 does with the row of its lease."""

    def __init__(self, engine: Engine, connection: Connection, owner_id: str) -> None:
        self._connection = connection
        self._now_ms = engine.dialect.now_ms
        self._owner_id = owner_id

    def left_ms(self) -> int:
        sql = f"SELECT expires_at_ms - {self._now_ms} FROM leases"
        return int(self._connection.execute(sql).rows[0][0])

    def take(self, duration_ms: int) -> None:
        self._connection.execute(
            "UPDATE leases SET owner_id = ?, owner_name = 'old', epoch = epoch + 1, clean = 0,"
            " connection_ids = '', doubtful_until_ms = 9,"
            f" expires_at_ms = {self._now_ms} + ? WHERE bundle_id = 0",
            (self._owner_id, duration_ms),
        )

    def renew(self, duration_ms: int) -> None:
        sql = f"UPDATE leases SET expires_at_ms = {self._now_ms} + ? WHERE bundle_id = 0"
        self._connection.execute(sql, (duration_ms,))

    def release(self) -> None:
        self._connection.execute(
            "UPDATE leases SET expires_at_ms = 0, connection_ids = '', clean = 1,"
            " doubtful_until_ms = 44"
        )


def test_bundle_of_an_older_broker_is_taken_only_when_its_own_lease_ends(
    engine: Engine, connection: Connection, clock: HandClock
) -> None:
    """O9: the database is migrated while the older broker renews ``leases``."""
    old, new = OlderBroker(engine, connection, "id-old"), joined(engine, ONE, clock)
    old.take(HOUR_MS)
    with pytest.raises(LeaseHeld, match=r"'old' \(id-old\) owns bundle 0 until .* another 3600 s"):
        lease.take(engine, new, clock)
    assert not look_at_all(engine, connection)[1][0].free
    old.renew(-1)  # it died
    taken = lease.take(engine, new, clock)
    assert (taken.epoch, taken.was_clean, taken.doubtful_until_ms) == (2, False, 9)
    lease.release(engine, connection, taken, clean=True)
    old.take(HOUR_MS)
    old.release()
    taken = lease.take(engine, new, clock)
    assert (taken.epoch, taken.was_clean, taken.doubtful_until_ms) == (4, True, 44)


def test_upgraded_broker_takes_its_own_bundle_at_once(
    engine: Engine, connection: Connection, clock: HandClock
) -> None:
    """B8: the older program was killed, and the newer one starts in its data directory."""
    OlderBroker(engine, connection, "id-1").take(HOUR_MS)
    assert lease.acquire(engine, ONE, HOUR_MS, clock).epoch == 2


def test_older_broker_does_not_take_the_bundle_of_a_newer_one(
    engine: Engine, connection: Connection, clock: HandClock
) -> None:
    """Not even when all newer ones have died. Once a newer one has released it, it may."""
    old = OlderBroker(engine, connection, "id-old")
    held = lease.acquire(engine, ONE, HOUR_MS, clock)
    assert old.left_ms() > 10**12
    connection.execute("UPDATE brokers SET expires_at_ms = 0")
    assert old.left_ms() > 10**12
    lease.release(engine, connection, held, clean=True)
    assert old.left_ms() <= 0
    old.take(HOUR_MS)
    with pytest.raises(LeaseHeld, match="'old'"):
        lease.acquire(engine, ONE, HOUR_MS, clock)


def test_address_of_another_live_process_is_refused(
    engine: Engine, connection: Connection, clock: HandClock
) -> None:
    """B8: the error names the process. Its own later incarnations, and others, may have it."""
    one = members.register(engine, ONE, HOUR_MS, clock, "a:7650")
    with pytest.raises(
        AddressTaken, match=r"'one' \(id-1\) has the address a:7650 until"
    ) as refused:
        members.register(engine, TWO, HOUR_MS, clock, "a:7650")
    assert "new data directory, start it again after that time" in str(refused.value)
    members.register(engine, TWO, HOUR_MS, clock, "b:7650")
    again = members.register(engine, ONE, HOUR_MS, clock, "a:7650")
    assert again.incarnation != one.incarnation
    members.leave(connection, again)
    members.register(engine, TWO, HOUR_MS, clock, "a:7650")
    members.register(engine, ONE, HOUR_MS, clock)
    members.register(engine, Identity("id-3", "three"), HOUR_MS, clock)


def test_expired_process_holds_no_address(
    engine: Engine, connection: Connection, clock: HandClock
) -> None:
    members.register(engine, ONE, HOUR_MS, clock, "a:7650")
    connection.execute("UPDATE brokers SET expires_at_ms = 1")
    assert members.register(engine, TWO, HOUR_MS, clock, "a:7650").address == "a:7650"
