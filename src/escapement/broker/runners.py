"""The runners of a broker's blocking calls, one for each purpose.

A call never waits for a thread that a call with another purpose has. The renewal of the lease and
the group commits always find a free thread, however much the broker reads at the same time. A look
of a client at messages may take seconds, and hundreds may come at once. They share two threads, in
which their steps are made in the order of their arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from escapement.storage.blocking import Run, in_threads
from escapement.storage.bundles import MAX_BUNDLES
from escapement.storage.outbox.mapping_table import MAX_OUTBOXES

# The task that renews the lease. Like each commit lane, it makes one call at a time.
LEASE_KEEPERS: Final = 1
# Index reads of the pump, log reads, checkpoints, merges and the other upkeep.
WORK_THREADS: Final = 16
# One look computes while another waits for the disk. All threads that compute share the interpreter
# lock with the event loop, so more threads would slow down publishes and make no look faster.
LOOK_THREADS: Final = 2
# For each database: polls, claims and writes.
_TABLE_THREADS: Final = 3


@dataclass(frozen=True, slots=True)
class Runners:
    """The runners of one broker.

    Attributes:
      commits: for the lease and the commit lanes.
      work: for the other work of the broker.
      looks: for the requests of clients that search, list or count messages.
      checks: for the checks of the surroundings of the broker, which may take half a minute if a
        database hangs. A stop does not wait for them.
      outboxes: for the outboxes of applications, whose databases must not delay the log's when they
        hang.
      tables: for message tables, for the same reason.
    """

    commits: Run
    work: Run
    looks: Run
    checks: Run
    outboxes: Run
    tables: Run

    @classmethod
    def in_threads(cls, commit_lanes: int, outboxes: int = 0, databases: int = 0) -> Runners:
        """Return runners with threads of their own, enough for these commit lanes.

        Args:
          outboxes: the number of databases with outboxes. Each outbox has a thread. In each
            database, the ack relay of each bundle and the task that reads the mappings have one
            each. Unused threads do not exist.
          databases: the number of databases with message tables.
        """
        return cls(
            commits=in_threads(commit_lanes + LEASE_KEEPERS),
            work=in_threads(WORK_THREADS),
            looks=in_threads(LOOK_THREADS),
            checks=in_threads(1, leaves=True),
            outboxes=in_threads(max(outboxes, 1) * (MAX_OUTBOXES + MAX_BUNDLES + 1)),
            tables=in_threads(max(_TABLE_THREADS * databases, 1)),
        )

    def with_own_commits(self, commit_lanes: int) -> Runners:
        """Return these runners, with other threads for the commit lanes of one broker.

        The brokers of one process share all other threads.
        """
        return replace(self, commits=in_threads(commit_lanes + LEASE_KEEPERS))

    @classmethod
    def all_by(cls, run: Run) -> Runners:
        """Return runners that make all calls by ``run``, for tests on a virtual clock."""
        return cls(commits=run, work=run, looks=run, checks=run, outboxes=run, tables=run)
