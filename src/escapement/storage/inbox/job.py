"""Bulk jobs: many writers stage messages, one commit makes all of them visible, exactly once.

Owns the table ``jobs``. A *bulk job*, such as a Spark job, is identified by a *series* and a
*version*; each version of a series is a job of its own. A job consists of numbered *parts*, which
are written concurrently, each perhaps by several *attempts*. Each attempt *stages* its messages: it
writes them as inbox entries into *staged batches*, one for each target topic, where no reader sees
them. The commit of the job names the attempt of each part that counts::

    enter ──► stage, stage, ... (each part, each attempt) ──► commit ──► inbox relays
              staged batches with their inbox entries         batches get their target ids

- **Atomic.** :func:`commit` is one transaction that changes a row for each staged batch, and no
  inbox entry. Before it no reader sees any message of the job. After it the messages are in the
  inbox of their topics.
- **Exactly once.** A job counts as committed if its version, or a later version of its series, is
  committed. :func:`enter` checks this, so that nothing is staged in vain. :func:`commit` checks it
  again under a lock, and changes nothing if the job is committed. The newest committed job of each
  series is remembered for at least ``REMEMBERED_MS``.
- **Unused batches** (of other attempts, and of jobs that are never committed) are *abandoned*: they
  are deleted in steps by :mod:`~escapement.storage.inbox.staged_batch`. An attempt with abandoned
  batches can no longer be committed.

After the commit, inbox relays move the messages into the logs of their topics. When all are moved,
the job is *adopted*. ``stage`` and ``commit`` may be run again when the outcome of their
transaction is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from escapement.errors import StagingLost
from escapement.storage.engine.base import Connection, Dialect, Engine
from escapement.storage.inbox import inbox, staged_batch
from escapement.storage.inbox.entry import InboxEntry

# How long the newest committed job of a series is remembered after its messages were moved. If the
# job is entered again meanwhile, it adds nothing.
REMEMBERED_MS: Final = 90 * 86_400_000
# How long older versions of a series are remembered, only for operators to look at. The newest
# committed version shows that they are committed.
_SUPERSEDED_MS: Final = 86_400_000
# Limit of jobs that one call of :func:`forget_step` deletes.
_PURGE_STEP: Final = 500


class Job(NamedTuple):
    """A bulk job that was entered. If it is ``committed``, there is nothing to stage for it."""

    id: int
    series: str
    version: int
    committed: bool


class Attempt(NamedTuple):
    """One attempt at one part of a job."""

    job_id: int
    part: int
    name: str  # unique among the attempts of the job


class Tally(NamedTuple):
    """The total of what an attempt has staged for one target topic."""

    inbox_entries: int
    messages: int
    size_bytes: int


class Counted(NamedTuple):
    """The attempt of a part that the commit of its job counts, and how many messages it staged."""

    part: int
    attempt: str
    messages: int


class JobState(NamedTuple):
    """The status of a bulk job, as shown to operators."""

    series: str
    version: int
    created_at_ms: int
    committed_at_ms: int | None  # None: not committed yet
    adopted_at_ms: int | None  # when its last messages were moved to the logs; None: not yet
    # When staged batches were last abandoned. None if that never happened, or if the job is
    # committed or has staged batches.
    given_up_at_ms: int | None
    messages: int  # committed messages, or the staged ones if the job is not committed
    size_bytes: int  # total size of these messages
    waiting: int  # committed messages that are not in their topics' logs yet
    stuck: int  # number of inbox entries with waiting messages that can never be moved
    reason: str  # why one of the stuck entries cannot be moved, or ""
    target: str  # one of the topics with waiting messages, or ""
    staged_at_ms: int | None  # when messages were staged last, if not committed and some are staged


# -- writing -------------------------------------------------------------------


def enter(engine: Engine, connection: Connection, series: str, version: int) -> Job:
    """Return the job with this series and version. Create it if it does not exist.

    If this version or a later one is committed, the result is a committed job with the id 0.
    """
    if _is_committed(connection, series, version):
        return Job(0, series, version, True)
    find = "SELECT id FROM jobs WHERE series = ? AND version = ?"
    rows = connection.execute(find, (series, version)).rows
    if not rows:
        connection.execute(
            f"{engine.dialect.insert_ignore} INTO jobs (series, version, created_at_ms,"
            f" message_count, size_bytes) VALUES (?, ?, {engine.dialect.now_ms}, 0, 0)",
            (series, version),
        )
        rows = connection.execute(find, (series, version)).rows
    ((id,),) = rows
    return Job(id, series, version, False)


def stage(
    engine: Engine,
    connection: Connection,
    attempt: Attempt,
    inbox_entries: Sequence[InboxEntry],
    tallies: Mapping[str, Tally],
) -> None:
    """Stage inbox entries for an attempt, inside the open transaction.

    Args:
      inbox_entries: entries whose source ids are unique among those of the attempt and target.
      tallies: for each target of the entries, the total that the attempt has staged for it,
        including these entries.

    Raises:
      StagingLost: if earlier entries of the attempt were abandoned.
    """
    target_ids: dict[str, int] = {}
    at_ms = now_ms(engine.dialect, connection)
    for target in sorted({inbox_entry.target for inbox_entry in inbox_entries}):
        tally = tallies[target]
        key = (attempt.job_id, attempt.part, attempt.name, target.encode())
        if tally.inbox_entries == sum(
            inbox_entry.target == target for inbox_entry in inbox_entries
        ):
            connection.execute(
                f"{engine.dialect.insert_ignore} INTO staged_batches (job_id, part, attempt,"
                " target, target_id, stuck, entry_count, message_count, size_bytes, staged_at_ms,"
                " moved_id)"
                " VALUES (?, ?, ?, ?, 0, 0, 0, 0, 0, 0, 0)",
                key,
            )
        found = connection.execute(
            "UPDATE staged_batches SET entry_count = ?, message_count = ?, size_bytes = ?,"
            " staged_at_ms = ? WHERE job_id = ? AND part = ? AND attempt = ? AND target = ?"
            " AND target_id = 0",
            (*tally, at_ms, *key),
        ).affected
        if not found:
            raise StagingLost(
                f"the messages that attempt {attempt.name} staged for {target} were abandoned;"
                " start the part again"
            )
        ((id,),) = connection.execute(
            "SELECT id FROM staged_batches"
            " WHERE job_id = ? AND part = ? AND attempt = ? AND target = ?",
            key,
        ).rows
        target_ids[target] = -id
    inbox.insert_into(engine, connection, inbox_entries, target_ids, at_ms)


def commit(engine: Engine, connection: Connection, job: Job, counted: Sequence[Counted]) -> bool:
    """Commit a job, inside the open transaction: its messages go to the inbox of their topics.

    Args:
      counted: the attempt of each part that counts. Messages of other attempts are left out.

    Returns:
      Whether this call has committed the job. False if it was committed before.

    Raises:
      StagingLost: if messages of these attempts were abandoned. Nothing has changed then.
    """
    lock = engine.dialect.update_lock
    if not connection.execute(f"SELECT id FROM jobs WHERE id = ?{lock}", (job.id,)).rows:
        if _is_committed(connection, job.series, job.version):
            _put_on_disk(connection, job.series)
            return False
        raise StagingLost(f"the job {job.series}/{job.version} was abandoned before its commit")
    if _is_committed(connection, job.series, job.version):
        _put_on_disk(connection, job.series)
        return False
    rows = connection.execute(
        "SELECT id, part, attempt, target, message_count, size_bytes FROM staged_batches"
        f" WHERE job_id = ? AND target_id = 0 ORDER BY id{lock}",
        (job.id,),
    ).rows
    wanted = {(one.part, one.attempt): one.messages for one in counted}
    taken = [row for row in rows if (row[1], row[2]) in wanted]
    _check_whole(job, wanted, taken)
    target_ids = inbox.inbox_targets(engine, connection, {bytes(row[3]).decode() for row in taken})
    if taken:
        connection.execute_many(
            "UPDATE staged_batches SET target_id = ? WHERE id = ?",
            [(target_ids[bytes(row[3]).decode()], row[0]) for row in taken],
        )
    at_ms = now_ms(engine.dialect, connection)
    connection.execute(
        "UPDATE jobs SET committed_at_ms = ?, adopted_at_ms = ?, message_count = ?,"
        " size_bytes = ? WHERE id = ?",
        (
            at_ms,
            None if taken else at_ms,
            sum(row[4] for row in taken),
            sum(row[5] for row in taken),
            job.id,
        ),
    )
    return True


def _put_on_disk(connection: Connection, series: str) -> None:
    """Change the rows of a series' committed jobs, to make their earlier commit durable.

    A server may show a commit before it is on disk. Committing a change puts both on disk.
    """
    connection.execute(
        "UPDATE jobs SET created_at_ms = created_at_ms + 1"
        " WHERE series = ? AND committed_at_ms IS NOT NULL",
        (series,),
    )


def abandon(connection: Connection, job: Job, run: str) -> int:
    """Abandon staged batches of a job, inside the open transaction. Return their number.

    Args:
      run: abandon the batches of attempts whose names begin with this text.
    """
    rows = connection.execute(
        "SELECT id, attempt, staged_at_ms FROM staged_batches WHERE job_id = ? AND target_id = 0",
        (job.id,),
    ).rows
    ours = [(id, staged_at_ms) for id, attempt, staged_at_ms in rows if attempt.startswith(run)]
    return sum(staged_batch.give_up(connection, id, staged_at_ms) for id, staged_at_ms in ours)


def staged_by(connection: Connection, run: str, version: int) -> list[str]:
    """Return the series of the jobs for which a bulk write has staged messages.

    O(all staged batches).

    Args:
      run: the id of the bulk write. The names of its attempts begin with it.
      version: the version of the jobs to look at.
    """
    rows = connection.execute(
        "SELECT DISTINCT jobs.series FROM jobs JOIN staged_batches b ON b.job_id = jobs.id"
        " WHERE jobs.version = ? AND b.target_id = 0 AND b.attempt LIKE ?",
        (version, f"{run}%"),
    ).rows
    return [series for (series,) in rows]


def give_up(dialect: Dialect, connection: Connection, job: Job, run: str) -> None:
    """Abandon the batches that a bulk write staged for a job, and record the time.

    Runs inside the open transaction.

    Args:
      run: the id of the bulk write. The names of its attempts begin with it.
    """
    abandon(connection, job, run)
    staged_batch.note_given_up(dialect, connection, job.id)


def _is_committed(connection: Connection, series: str, version: int) -> bool:
    ((newest,),) = connection.execute(
        "SELECT MAX(version) FROM jobs WHERE series = ? AND committed_at_ms IS NOT NULL",
        (series,),
    ).rows
    return newest is not None and newest >= version


def _check_whole(job: Job, wanted: Mapping[tuple[int, str], int], taken: Sequence[tuple]) -> None:  # type: ignore[type-arg]
    """Check that the database still has all messages that the attempts of a job have staged.

    Args:
      wanted: the number of messages that each (part, attempt) has staged.
      taken: the rows of the staged batches of these attempts.

    Raises:
      StagingLost: if messages are missing.
    """
    staged: dict[tuple[int, str], int] = dict.fromkeys(wanted, 0)
    for _, part, attempt, _, messages, _ in taken:
        staged[part, attempt] += messages
    for key, messages in wanted.items():
        if staged[key] != messages:
            raise StagingLost(
                f"part {key[0]} of the job {job.series}/{job.version} staged {messages} messages,"
                f" but {staged[key]} are stored: the part was aborted, or was idle for too long"
            )


def now_ms(dialect: Dialect, connection: Connection) -> int:
    """Return the time of the database's clock, which all writers of a job share."""
    ((at_ms,),) = connection.execute(f"SELECT {dialect.now_ms}").rows
    return int(at_ms)


# -- status and expiry -----------------------------------------------------------


def states(connection: Connection, limit: int) -> list[JobState]:
    """Return the status of the ``limit`` newest jobs, newest first."""
    jobs = connection.execute(
        "SELECT id, series, version, created_at_ms, committed_at_ms, adopted_at_ms,"
        f" given_up_at_ms, message_count, size_bytes FROM jobs ORDER BY id DESC LIMIT {limit:d}"
    ).rows
    staged = connection.execute(
        "SELECT job_id, SUM(message_count), SUM(size_bytes), MAX(staged_at_ms) FROM staged_batches"
        " WHERE target_id = 0 GROUP BY job_id"
    ).rows
    waiting = connection.execute(
        "SELECT b.job_id, SUM(i.message_count), SUM(i.stuck), MAX(i.reason), MIN(b.target)"
        f" FROM staged_batches b JOIN inbox i ON i.target_id = -b.id AND {staged_batch.WAITS}"
        " WHERE b.target_id > 0 GROUP BY b.job_id"
    ).rows
    by_staged = {id: (int(messages), int(size), int(at_ms)) for id, messages, size, at_ms in staged}
    by_waiting = {
        id: (int(messages), int(stuck), reason, bytes(target).decode())
        for id, messages, stuck, reason, target in waiting
    }
    found = []
    for id, series, version, created, committed, adopted, given_up, messages, size_bytes in jobs:
        staged_at = None
        if committed is None:
            messages, size_bytes, staged_at = by_staged.get(id, (0, 0, None))
        if committed is not None or staged_at is not None:
            given_up = None
        waits, stuck, reason, target = by_waiting.get(id, (0, 0, "", ""))
        times = (created, committed, adopted, given_up)
        found.append(
            JobState(
                series,
                version,
                *times,
                messages,
                size_bytes,
                waits,
                stuck,
                reason,
                target,
                staged_at,
            )
        )
    return found


def forget_step(dialect: Dialect, connection: Connection) -> bool:
    """Delete some jobs that need not be remembered any more. Return whether there may be more."""
    now = dialect.now_ms
    rows = connection.execute(
        "SELECT j.id FROM jobs j WHERE"
        # Keep an uncommitted job for a while, because its writers may not have staged anything yet.
        f" (j.committed_at_ms IS NULL AND j.created_at_ms < {now} - {REMEMBERED_MS}"
        "  AND NOT EXISTS (SELECT 1 FROM staged_batches b WHERE b.job_id = j.id))"
        f" OR j.adopted_at_ms < {now} - {REMEMBERED_MS}"
        f" OR (j.adopted_at_ms < {now} - {_SUPERSEDED_MS} AND EXISTS"
        "  (SELECT 1 FROM jobs n WHERE n.series = j.series AND n.version > j.version"
        "   AND n.committed_at_ms IS NOT NULL))"
        f" LIMIT {_PURGE_STEP}"
    ).rows
    connection.execute_many("DELETE FROM jobs WHERE id = ?", rows)
    return len(rows) == _PURGE_STEP
