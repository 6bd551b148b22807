"""Bulk jobs on both engines: staged in parts, committed as a whole, adopted once."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from escapement.errors import StagingLost, StorageError
from escapement.storage import schema
from escapement.storage.cleanup import freeing
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.storage.inbox import inbox, job, staged_batch
from escapement.storage.inbox.entry import decode_inbox_entry
from escapement.storage.inbox.job import Attempt, Counted, Job, Tally
from support.storage.commit_pipelines import AtStep, Crash, FaultyEngine
from support.storage.inbox_entries import inbox_entry
from support.storage.staged_jobs import commit, stage, stage_entries, take_out, transaction


def adopt(
    engine: Engine, connection: Connection, max_bytes: int = 1 << 20
) -> dict[str, list[bytes]]:
    """Take out all entries to be moved, as the owners of their targets do."""
    found: dict[str, list[bytes]] = {}
    while inbox_targets := inbox.occupied(connection, 0, 100):
        for inbox_target in inbox_targets:
            (step,) = inbox.read_steps(connection, [(inbox_target.id, True)], max_bytes, max_bytes)
            for one in step.inbox_entries:
                found.setdefault(inbox_target.target, []).extend(
                    decode_inbox_entry(one.data)[0].payloads.to_list()
                )
            take_out(engine, connection, step)
    return found


def purge(engine: Engine, connection: Connection) -> None:
    """Run the steps of the housekeeper until nothing is left to free."""
    more = True
    while more:
        with transaction(connection):
            more = staged_batch.purge_step(engine.dialect, connection)
    while more or not removal_done(connection):
        with transaction(connection):
            more = freeing.free_step(connection, [])


def removal_done(connection: Connection) -> bool:
    return not connection.execute("SELECT 1 FROM removals LIMIT 1").rows


def count(connection: Connection, table: str) -> int:
    ((rows,),) = connection.execute(f"SELECT COUNT(*) FROM {table}").rows
    return int(rows)


def age(connection: Connection, ms: int) -> None:
    """Move all recorded times ``ms`` into the past."""
    connection.execute("UPDATE staged_batches SET staged_at_ms = staged_at_ms - ?", (ms,))
    connection.execute(
        "UPDATE jobs SET adopted_at_ms = committed_at_ms - ? WHERE adopted_at_ms IS NOT NULL",
        (ms,),
    )
    connection.execute(
        "UPDATE jobs SET created_at_ms = created_at_ms - ?, committed_at_ms = committed_at_ms - ?",
        (ms, ms),
    )


def test_staged_entries_are_invisible_until_their_job_is_committed(
    engine: Engine, connection: Connection
) -> None:
    """B7."""
    load = job.enter(engine, connection, "load", 0)
    one = stage(engine, connection, load, 0, "a", b"1", b"2")
    two = stage_entries(
        engine,
        connection,
        load,
        1,
        "b",
        [inbox_entry("t/n/y", "0", b"3"), inbox_entry("t/n/x", "0", b"4")],
    )
    assert adopt(engine, connection) == {}
    assert inbox.waiting(connection, 9) == []
    assert commit(engine, connection, load, one, two)
    assert {one.target: one.messages for one in inbox.waiting(connection, 9)} == {
        "t/n/x": 3,
        "t/n/y": 1,
    }
    (state,) = job.states(connection, 9)
    assert (state.messages, state.waiting, state.adopted_at_ms) == (4, 4, None)
    assert adopt(engine, connection) == {"t/n/x": [b"1", b"2", b"4"], "t/n/y": [b"3"]}
    (state,) = job.states(connection, 9)
    assert (state.messages, state.waiting, state.adopted_at_ms is None) == (4, 0, False)
    purge(engine, connection)
    assert (count(connection, "inbox"), count(connection, "staged_batches")) == (0, 0)


def test_only_the_committed_attempt_of_a_retried_part_counts(
    engine: Engine, connection: Connection
) -> None:
    """B7."""
    load = job.enter(engine, connection, "load", 0)
    stage(engine, connection, load, 0, "failed", b"1", b"2")
    good = stage(engine, connection, load, 0, "good", b"1", b"2")
    stage(engine, connection, load, 0, "speculative", b"1")
    assert commit(engine, connection, load, good)
    assert adopt(engine, connection) == {"t/n/x": [b"1", b"2"]}
    purge(engine, connection)
    assert (count(connection, "inbox"), count(connection, "staged_batches")) == (0, 0)
    late, tallies = Attempt(load.id, 0, "speculative"), {"t/n/x": Tally(2, 2, 9)}
    with transaction(connection), pytest.raises(StagingLost):
        job.stage(engine, connection, late, [inbox_entry("t/n/x", "1")], tallies)


def test_repeated_job_adds_nothing(engine: Engine, connection: Connection) -> None:
    """B7: this holds for older versions of the series and for a slower driver."""
    first = job.enter(engine, connection, "load", 7)
    slower = job.enter(engine, connection, "load", 7)
    one = stage(engine, connection, first, 0, "a", b"1")
    two = stage(engine, connection, slower, 0, "b", b"1")
    assert commit(engine, connection, first, one)
    assert not commit(engine, connection, slower, two)
    assert not commit(engine, connection, first, one)
    for version in (0, 6, 7):
        assert job.enter(engine, connection, "load", version).committed
    assert not job.enter(engine, connection, "load", 8).committed
    assert not job.enter(engine, connection, "Load", 7).committed
    assert adopt(engine, connection) == {"t/n/x": [b"1"]}


def test_a_job_without_messages_is_remembered_too(engine: Engine, connection: Connection) -> None:
    load = job.enter(engine, connection, "load", 0)
    assert commit(engine, connection, load, Counted(0, "a", 0))
    assert job.enter(engine, connection, "load", 0).committed
    (state,) = job.states(connection, 9)
    assert state.adopted_at_ms == state.committed_at_ms


def test_idle_job_is_given_up_and_its_old_batches_cannot_be_committed(
    engine: Engine, connection: Connection
) -> None:
    """B7: batches of an idle task stay while another task of the job still stages."""
    load, alone = (job.enter(engine, connection, name, 0) for name in ("load", "alone"))
    old = stage(engine, connection, load, 0, "old", *(b"%d" % n for n in range(100)))
    stage(engine, connection, alone, 0, "old", b"a")
    age(connection, staged_batch.STAGING_IDLE_MS + 1)
    stage(engine, connection, load, 1, "fresh", b"f")
    purge(engine, connection)
    assert count(connection, "staged_batches") == 2
    assert [one.given_up_at_ms is None for one in job.states(connection, 9)] == [False, True]
    age(connection, staged_batch.STAGING_IDLE_MS + 1)
    purge(engine, connection)
    assert (count(connection, "inbox"), count(connection, "staged_batches")) == (0, 0)
    fresh = stage(engine, connection, load, 1, "fresh", b"f")
    with pytest.raises(StagingLost, match="100 messages, but 0 are stored"):
        commit(engine, connection, load, old, fresh)
    assert adopt(engine, connection) == {}
    again = stage(engine, connection, load, 0, "again", b"a")
    assert commit(engine, connection, load, again, fresh)
    assert job.states(connection, 9)[1].given_up_at_ms is None
    assert sorted(adopt(engine, connection)["t/n/x"]) == [b"a", b"f"]


def test_abandon_gives_up_only_the_named_attempts(engine: Engine, connection: Connection) -> None:
    load = job.enter(engine, connection, "load", 0)
    ours = stage(engine, connection, load, 0, "ours", b"1")
    theirs = stage(engine, connection, load, 0, "theirs", b"1")
    with transaction(connection):
        assert job.abandon(connection, load, "our") == 1
    with pytest.raises(StagingLost):
        commit(engine, connection, load, ours)
    assert commit(engine, connection, load, theirs)
    with transaction(connection):
        assert job.abandon(connection, load, "theirs") == 0
    purge(engine, connection)
    assert adopt(engine, connection) == {"t/n/x": [b"1"]}


def test_job_without_staged_batches_is_reported_as_given_up(
    engine: Engine, connection: Connection
) -> None:
    """B7: until a writer stages again or commits."""

    def given_up() -> bool:
        return job.states(connection, 9)[0].given_up_at_ms is not None

    load = job.enter(engine, connection, "load", 0)
    assert not given_up()
    stage(engine, connection, load, 0, "ours", b"1")
    stage(engine, connection, load, 0, "theirs", b"1")
    for run, whether in (("ours", False), ("theirs", True)):
        with transaction(connection):
            job.give_up(engine.dialect, connection, load, run)
        assert given_up() == whether
    stage(engine, connection, load, 0, "again", b"1")
    assert not given_up()
    age(connection, staged_batch.STAGING_IDLE_MS + 1)
    purge(engine, connection)
    assert given_up()
    assert commit(engine, connection, load, stage(engine, connection, load, 0, "good", b"1"))
    with transaction(connection):
        job.give_up(engine.dialect, connection, load, "good")
    assert not given_up()
    assert adopt(engine, connection) == {"t/n/x": [b"1"]}


def test_staging_job_reports_the_time_of_its_last_batch(
    engine: Engine, connection: Connection
) -> None:
    """B7: this shows how long the writer, which may be dead, has been silent."""

    def staged_at_ms() -> int | None:
        return job.states(connection, 9)[0].staged_at_ms

    load = job.enter(engine, connection, "load", 0)
    assert staged_at_ms() is None
    stage(engine, connection, load, 0, "a", b"1")
    age(connection, 60_000)
    before = staged_at_ms()
    now_ms = job.now_ms(engine.dialect, connection)
    assert before is not None
    assert now_ms - 120_000 < before <= now_ms - 60_000
    counted = stage(engine, connection, load, 1, "b", b"1")
    assert (staged_at_ms() or 0) >= now_ms
    assert commit(engine, connection, load, counted)
    assert staged_at_ms() is None


def test_old_jobs_are_forgotten_and_the_newest_version_last(
    engine: Engine, connection: Connection
) -> None:
    for version in range(3):
        load = job.enter(engine, connection, "series", version)
        commit(engine, connection, load, stage(engine, connection, load, 0, "a", b"1"))
    job.enter(engine, connection, "nobody committed it", 0)

    def remembered() -> list[tuple[str, int]]:
        with transaction(connection):
            job.forget_step(engine.dialect, connection)
        return [(one.series, one.version) for one in job.states(connection, 9)]

    assert len(remembered()) == 4
    adopt(engine, connection)
    age(connection, staged_batch.STAGING_IDLE_MS + 1)
    names = [("nobody committed it", 0), ("series", 2)]
    assert remembered() == names, "the newest version stands for all"
    assert job.enter(engine, connection, "series", 0).committed
    age(connection, job.REMEMBERED_MS)
    assert remembered() == []


def test_deleting_a_topic_discards_committed_entries_of_jobs(
    engine: Engine, connection: Connection
) -> None:
    """Q7: uncommitted batches belong to no topic, so they stay."""
    load = job.enter(engine, connection, "load", 0)
    one = stage(engine, connection, load, 0, "a", *(b"%d" % n for n in range(70)))
    other = stage(engine, connection, load, 1, "b", b"y", target="t/n/y")
    later = job.enter(engine, connection, "later", 0)
    two = stage(engine, connection, later, 0, "a", b"new")
    commit(engine, connection, load, one, other)
    with transaction(connection):
        assert inbox.close(connection, "t/n/x") == 70
    assert adopt(engine, connection) == {"t/n/y": [b"y"]}
    assert job.states(connection, 9)[1].adopted_at_ms is not None
    assert commit(engine, connection, later, two)
    purge(engine, connection)
    assert adopt(engine, connection) == {"t/n/x": [b"new"]}
    purge(engine, connection)
    assert count(connection, "inbox") == 0


def test_inbox_entries_move_before_entries_of_jobs_and_stuck_entries_stay(
    engine: Engine, connection: Connection
) -> None:
    load = job.enter(engine, connection, "load", 0)
    counted = [stage(engine, connection, load, n, f"{n}", b"a", b"b", b"c") for n in range(3)]
    commit(engine, connection, load, *counted)
    with transaction(connection):
        inbox.insert(engine, connection, [inbox_entry("t/n/x", "own")], 0)
    (inbox_target,) = inbox.occupied(connection, 0, 9)
    (step,) = inbox.read_steps(connection, [(inbox_target.id, True)], 1 << 20, 1 << 20)
    assert len(step.inbox_entries) == 1
    assert not step.of_jobs
    step = inbox.read_staged_batches(connection, inbox_target.id, 1 << 20)
    inbox.mark_stuck(connection, step.inbox_entries[4].id, "never")
    assert adopt(engine, connection, max_bytes=1)["t/n/x"] == [b"own", *b"a b c a c a b c".split()]
    (waits,) = inbox.waiting(connection, 9)
    assert (waits.messages, waits.stuck, waits.reason) == (1, 1, "never")
    (state,) = job.states(connection, 9)
    assert (state.waiting, state.stuck, state.reason) == (1, 1, "never")
    assert state.adopted_at_ms is None
    purge(engine, connection)  # frees moved entries, but not stuck ones
    assert inbox.waiting(connection, 9) == [waits]
    assert (count(connection, "inbox"), count(connection, "staged_batches")) == (1, 1)
    with transaction(connection):
        assert inbox.close(connection, "t/n/x") == 1
    purge(engine, connection)
    assert job.states(connection, 9)[0].adopted_at_ms is not None


def test_entries_are_freed_in_steps_of_bounded_size(engine: Engine, connection: Connection) -> None:
    load = job.enter(engine, connection, "load", 0)
    large, small = bytes(900 << 10), b"small"
    payloads = [large, small, large, large, bytes(3 << 20), small, *[small] * 100]
    counted = stage(engine, connection, load, 0, "a", *payloads)
    commit(engine, connection, load, counted)
    adopt(engine, connection)
    left = [count(connection, "inbox")]
    while not removal_done(connection):
        with transaction(connection):
            freeing.free_step(connection, [])
        left.append(count(connection, "inbox"))
    freed = [before - after for before, after in pairwise(left)]
    assert freed == [3, 1, 1, 64, 37, 0]


def test_staged_batch_that_changed_since_its_read_is_not_advanced(
    engine: Engine, connection: Connection
) -> None:
    """B7: a batch is not advanced twice, out of order, or after its deletion."""
    load = job.enter(engine, connection, "load", 0)
    counted = stage(engine, connection, load, 0, "a", b"1", b"2", b"3")
    commit(engine, connection, load, counted)
    (inbox_target,) = inbox.occupied(connection, 0, 9)
    first = inbox.read_staged_batches(connection, inbox_target.id, 1)
    (second,) = inbox.read_ahead(connection, [(inbox_target.id, first.last)], 1)
    with pytest.raises(StorageError, match="Staged batch"):
        take_out(engine, connection, second)
    take_out(engine, connection, first)
    with pytest.raises(StorageError, match="Staged batch"):
        take_out(engine, connection, first)
    take_out(engine, connection, second)
    (state,) = job.states(connection, 9)
    assert (state.messages, state.waiting) == (3, 1)
    third = inbox.read_staged_batches(connection, inbox_target.id, 1)
    with transaction(connection):
        assert inbox.close(connection, "t/n/x") == 1
    with pytest.raises(StorageError, match="Staged batch"):
        take_out(engine, connection, third)


@pytest.mark.parametrize("when", ["before", "after"])
def test_writer_crash_or_retry_at_any_step_leaves_all_or_nothing(
    engine: Engine, connection: Connection, when: str
) -> None:
    """B7: staging and commit are atomic, and can be repeated if their outcome is unknown."""
    faulty = FaultyEngine(engine)
    for number in range(1, 100):
        crash = AtStep(number, Crash())
        series = f"{when} {number}"
        setattr(faulty, when, crash)
        try:
            _write(faulty, series)
        except Crash:
            setattr(faulty, when, lambda step: None)
            assert set(adopt(engine, connection).get("t/n/x", [])) in (set(), {b"1", b"2", b"3"})
            before = job.enter(engine, connection, series, 0).committed
            _write(faulty, series)
            assert sorted(adopt(engine, connection).get("t/n/x", [])) == (
                [] if before else [b"1", b"2", b"3"]
            )
        else:
            break
    else:
        raise AssertionError("the writer never finished")
    assert crash.count > (20 if when == "before" else 2)


def _write(engine: FaultyEngine, series: str) -> None:
    """Write a job that gives its attempts the same names each time."""
    connection = engine.connect()
    load = job.enter(engine, connection, series, 0)
    counted = [
        stage(engine, connection, load, 0, "a", b"1", b"2"),
        stage(engine, connection, load, 1, "a", b"3"),
    ]
    commit(engine, connection, load, *counted)
    connection.close()


def test_random_workload_adopts_exactly_the_committed_jobs_once() -> None:
    """B7: compared with a model that remembers the messages of each job."""
    for seed in range(40):
        _random_workload(random.Random(seed), seed)


def _random_workload(rng: random.Random, seed: int) -> None:
    engine = SqliteEngine.in_memory()
    schema.migrate(engine)
    connection = engine.connect()
    staged: dict[Job, list[tuple[Counted, list[bytes]]]] = {}
    wanted: list[bytes] = []
    got: list[bytes] = []
    names = iter(range(10**6))
    for _ in range(80):
        move = rng.choice(
            ["enter", "stage", "stage", "stage", "commit", "abandon", "adopt", "purge"]
        )
        if move == "enter":
            entered = job.enter(engine, connection, rng.choice("ab"), rng.randrange(4))
            if not entered.committed:
                staged.setdefault(entered, [])
        elif move == "adopt":
            got += adopt(engine, connection, rng.choice([1, 200, 1 << 20])).get("t/n/x", [])
        elif move == "purge":
            purge(engine, connection)
        elif staged:
            chosen = rng.choice(list(staged))
            attempts = staged[chosen]
            if move == "stage":
                payloads = [b"%d" % next(names) for _ in range(rng.randrange(1, 4))]
                name = f"{next(names)}."
                part = rng.randrange(2)
                try:
                    counted = stage(engine, connection, chosen, part, name, *payloads)
                except StagingLost:
                    continue
                attempts.append((counted, payloads))
            elif move == "abandon" and attempts:
                one = attempts.pop(rng.randrange(len(attempts)))
                with transaction(connection):
                    job.abandon(connection, chosen, one[0].attempt)
            elif move == "commit":
                parts = {one[0].part: one for one in attempts}
                if commit(engine, connection, chosen, *(one[0] for one in parts.values())):
                    wanted += [p for _, payloads in parts.values() for p in payloads]
                del staged[chosen]
    got += adopt(engine, connection).get("t/n/x", [])
    assert sorted(got) == sorted(wanted), f"seed {seed}"
    for left in job.states(connection, 99):
        assert left.waiting == 0, f"seed {seed}"
    connection.close()
    engine.close()
