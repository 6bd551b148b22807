"""Bundles in the database: their number, their generations, and the state that a start reads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.errors import AlreadyExists, InvalidRequest, WrongBundle
from escapement.names import TopicName
from escapement.storage import lease, removal
from escapement.storage.bundles import (
    MAX_BUNDLES,
    bundle_count,
    bundle_of_name,
    set_bundle_count,
)
from escapement.storage.catalog import catalog, producers
from escapement.storage.catalog.producers import NewProducer, producer_ids
from escapement.storage.cleanup import freeing
from escapement.storage.data_table import (
    ATTEMPTS,
    CURSOR_CHUNKS,
    DEDUP_KEYS,
    GROUP_MEMBERS,
    MOVES,
    REPLACE_KEYS,
)
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.transaction import transaction
from escapement.storage.inbox import event_group
from escapement.storage.inbox.entry import InboxEntry
from escapement.storage.journal.entry import cancellations_id, lapses_id
from escapement.storage.lease import Identity, Lease
from escapement.storage.log import table_sets
from escapement.storage.log.generation import Generation, read_generations
from escapement.storage.log.log import Log
from escapement.storage.state.state import State, load_state

BUNDLES = 3


class _Clock:
    """A clock that stands still."""

    def now_ms(self) -> int:
        return 1

    def lease_ms(self) -> int:
        return 1


def taken(engine: Engine, bundle_id: int) -> Lease:
    identity = Identity(f"{bundle_id:032}", "me")
    return lease.acquire(engine, identity, 10**9, _Clock(), bundle_id)  # type: ignore[arg-type]


@pytest.fixture
def divided(engine: Engine, connection: Connection) -> Connection:
    """Return a connection to a database with several bundles."""
    assert set_bundle_count(engine, BUNDLES) == 1
    return connection


def test_number_of_bundles_only_grows_and_each_bundle_has_a_lease(
    engine: Engine, connection: Connection
) -> None:
    """Step 1 of several brokers: leases are independent of each other."""
    assert bundle_count(connection) == 1
    assert set_bundle_count(engine, 4) == 1
    assert set_bundle_count(engine, 4) == 4
    leases = [taken(engine, bundle_id) for bundle_id in range(4)]
    again = taken(engine, 2)
    assert again.epoch == leases[2].epoch + 1
    with transaction(connection):
        for one in (*leases[:2], again, leases[3]):
            lease.check(engine, connection, one)
    for count in (3, MAX_BUNDLES + 1):
        with pytest.raises(InvalidRequest):
            set_bundle_count(engine, count)
    assert bundle_count(connection) == 4


def test_bundle_of_a_name_is_the_same_in_every_process() -> None:
    """A stored topic must be found by a later version: these values never change."""
    names = [f"shop/eu/orders-{number}" for number in range(6)]
    assert [bundle_of_name(name, 1) for name in names] == [0] * 6
    assert [bundle_of_name(name, 16) for name in names] == [2, 12, 13, 15, 12, 5]


@given(
    st.lists(
        st.tuples(st.integers(0, 2**24 - 1), st.integers(0, MAX_BUNDLES - 1)),
        min_size=2,
        max_size=9,
        unique=True,
    )
)
def test_producers_of_different_owners_never_have_equal_ids(owners: list[tuple[int, int]]) -> None:
    """Each start of a broker has its own range of ids, whatever its bundle and epoch."""
    firsts = sorted(next(producer_ids(*owner)) for owner in owners)
    assert all(later - earlier >= 1 << 32 for earlier, later in pairwise(firsts))
    assert firsts[0] > 0
    assert firsts[-1] < 1 << 62


def test_each_bundle_has_its_own_generations_with_unique_ids(
    engine: Engine, divided: Connection
) -> None:
    """A bundle begins and drops only its own generations. No id is used twice."""
    held = [taken(engine, bundle_id) for bundle_id in range(BUNDLES)]
    logs = [Log.open(engine, divided, one, 2, 0) for one in held]
    assert [log.current.id for log in logs] == [1, 2, 3]
    logs[1].begin(*logs[1].prepare(engine, divided, held[1], 4, 5))
    assert [[one.id for one in Log.look(divided, n).generations] for n in range(BUNDLES)] == [
        [1],
        [2, 4],
        [3],
    ]
    # An incomplete generation, the last id of all, is given up. Its id is not used again.
    with transaction(divided):
        removal.mark(divided, "generation", 4, 1)
    reopened = Log.open(engine, divided, held[1], 2, 0)
    assert [one.id for one in reopened.going] == [4]
    with transaction(divided):
        divided.execute("DELETE FROM generations WHERE id = 4")
        removal.done(divided, "generation", 4)
    logs[2].begin(*logs[2].prepare(engine, divided, held[2], 2, 5))
    assert logs[2].current.id == 5
    # An older version of the broker inserts a generation without naming a bundle or its last id.
    divided.execute(
        "INSERT INTO generations (id, parallelism, created_at_ms, size_bytes) VALUES (9, 1, 0, 0)"
    )
    logs[1].begin(*logs[1].prepare(engine, divided, held[1], 2, 5))
    assert logs[1].current.id == 10
    assert [one.id for one in read_generations(divided, 0)] == [1, 9]
    before = Log.look(divided)
    assert Log.look(divided).has_all_of(before)
    divided.execute("DELETE FROM generations WHERE id = 3")
    assert not Log.look(divided).has_all_of(before)


def fill(connection: Connection, topics_of_each: int) -> None:
    """Create topics in each bundle, with a row of everything that a checkpoint stores."""
    space = catalog.create_namespace(connection, "t", "n", 0)
    for number in range(topics_of_each * BUNDLES):
        topic = catalog.create_topic(connection, space.id, f"x{number}", 0, number % BUNDLES)
        one = catalog.create_subscription(connection, topic.id, "s", "shared", 0)
        other = catalog.create_subscription(connection, topic.id, "r", "shared", 0)
        ids = producer_ids(number + 1, topic.bundle_id)
        connection.execute_all(producers.insertion([NewProducer(next(ids), topic.id, "p", 1)], 0))
        event_group.create_completion(
            connection, topic.id, "g", one.id, "s", InboxEntry("t/n/y", "i", b"", 1), 0
        )
        for owner in (one.id, lapses_id(other.id), cancellations_id(topic.id)):
            for chunk in range(3):
                connection.execute(CURSOR_CHUNKS.put, (owner, chunk, b"c"))
        for part in range(2):
            connection.execute(ATTEMPTS.put, (one.id, part, b"a"))
            for table in (MOVES, DEDUP_KEYS, REPLACE_KEYS):
                connection.execute(table.put, (topic.id, part, b"d"))
            connection.execute(GROUP_MEMBERS.put, (topic.id, "g", part, b"m"))


def test_a_start_reads_the_state_of_its_own_bundle_only(
    engine: Engine, connection: Connection
) -> None:
    """The states of the bundles are the parts of the whole. A single bundle is read as a whole."""
    with transaction(connection):
        fill(connection, 200)  # more owners than one query names
    connection.execute("UPDATE topics SET bundle_id = 0")
    whole = load_state(connection)
    connection.execute("UPDATE topics SET bundle_id = (id - 1) % 3")
    set_bundle_count(engine, BUNDLES)
    parts = [load_state(connection, bundle_id) for bundle_id in range(BUNDLES)]
    for part in parts:
        assert {topic.bundle_id for topic in part.topics} == {part.bundle_id}
        assert (len(part.topics), len(part.subscriptions)) == (200, 400)
    for name in ("subscriptions", "producers"):
        together = [one for part in parts for one in getattr(part, name)]
        assert sorted(together, key=lambda one: one.id) == getattr(whole, name)
    for name in ("chunks", "moves", "attempts", "keys", "replace_keys", "members", "completions"):
        assert _merged(parts, name) == getattr(whole, name)
        assert getattr(whole, name)


def _merged(parts: list[State], name: str) -> dict[int, object]:
    merged: dict[int, object] = {}
    for part in parts:
        of_part = getattr(part, name)
        assert not of_part.keys() & merged.keys()
        merged |= of_part
    return merged


def test_rows_of_a_deleted_topic_are_freed_by_its_bundle_only(divided: Connection) -> None:
    """No two housekeepers free the same rows, and the log's rows are in the bundle's log."""
    with transaction(divided):
        fill(divided, 1)
        found = [one.id for one in catalog.read_topics(divided, 1)]
        for id in found:
            catalog.delete_topic(divided, id)
    for bundle_id in (0, 2):
        assert not freeing.free_step(divided, [], bundle_id)
    while freeing.free_step(divided, [], 1):
        pass
    for kind in ("topic", "subscription", "lag"):
        assert removal.marked(divided, kind) == []  # type: ignore[arg-type]
    assert divided.execute("SELECT COUNT(*) FROM cursor_chunks").rows == [(2 * 9,)]


def test_a_topic_is_created_only_in_the_bundle_of_its_name(
    engine: Engine, divided: Connection
) -> None:
    """The bundle of an existing topic counts. Without one, the hash and the present number do."""
    space = catalog.create_namespace(divided, "t", "n", 0)
    name = TopicName("t", "n", "x")
    home = bundle_of_name(name.full, BUNDLES)
    away = (home + 1) % BUNDLES
    dialect = engine.dialect
    with transaction(divided):
        catalog.check_places(divided, dialect, [name], home)
    with pytest.raises(WrongBundle, match=f"belongs to bundle {home}"), transaction(divided):
        catalog.check_places(divided, dialect, [name], away)
    catalog.create_topic(divided, space.id, "x", 0, away)
    with pytest.raises(WrongBundle, match=f"belongs to bundle {away}"), transaction(divided):
        catalog.check_places(divided, dialect, [name], home)
    assert catalog.elsewhere(divided, [name], home) == {"t/n/x": away}
    assert catalog.elsewhere(divided, [name], away) == {}
    with pytest.raises(AlreadyExists):
        catalog.create_topic(divided, space.id, "x", 0, home)


def test_generations_that_begin_at_the_same_time_have_different_ids(
    engine: Engine, divided: Connection
) -> None:
    """The owners are in different processes, so only the database can keep their ids apart."""

    def begin(bundle_id: int) -> list[int]:
        held = taken(engine, bundle_id)
        with closing(engine.connect()) as own:
            log = Log.open(engine, own, held, 1, 0)
            for _ in range(4):
                log.begin(*log.prepare(engine, own, held, 1, 0))
            return [one.id for one in log.generations]

    with ThreadPoolExecutor(BUNDLES) as threads:
        found = list(threads.map(begin, range(BUNDLES)))
    assert sorted(id for ids in found for id in ids) == list(range(1, 5 * BUNDLES + 1))
    for bundle_id, ids in enumerate(found):
        assert [one.id for one in Log.look(divided, bundle_id).generations] == ids == sorted(ids)


def test_a_table_set_is_taken_by_one_bundle_only(engine: Engine, divided: Connection) -> None:
    """Owners that look for a free set at the same time take different ones."""
    count = 4 * BUNDLES
    for id in range(1, count + 1):
        divided.execute("INSERT INTO table_sets (id, table_count) VALUES (?, 2)", (id,))

    def take(bundle_id: int) -> list[int]:
        found: list[int] = []
        with closing(engine.connect()) as own:
            while True:
                new = Generation(100 * bundle_id + len(found) + 1, 2, 0, 0, bundle_id=bundle_id)
                with transaction(own):
                    table_set = table_sets.take(own, new)
                if table_set is None:
                    return found
                found.append(table_set)

    with ThreadPoolExecutor(BUNDLES) as threads:
        found = [id for ids in threads.map(take, range(BUNDLES)) for id in ids]
    assert sorted(found) == list(range(1, count + 1))
