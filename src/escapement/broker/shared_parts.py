"""What the brokers of one process share."""

from __future__ import annotations

from dataclasses import dataclass

from escapement.broker.delivery.output_bound import OutputBound
from escapement.broker.lookout import Lookout
from escapement.broker.membership import Membership
from escapement.storage.commit.shared_writer import SharedWriter
from escapement.storage.engine.connection_pool import ConnectionPool


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts that a process gives to each of its brokers.

    A broker makes a part that is None for itself.

    Attributes:
      membership: the membership of the process, which has registered it and runs it. The one that a
        broker makes replaces any other with the same identity.
      connections: a pool of connections to the database.
      writer: writes the group commits of all brokers in transactions that they share. The process
        runs it. A broker without it has a transaction for each group commit.
      lookout: looks at the wall clock and the inbox for all brokers. The process runs it.
      output: the bound on queued output.
    """

    membership: Membership | None = None
    connections: ConnectionPool | None = None
    writer: SharedWriter | None = None
    lookout: Lookout | None = None
    output: OutputBound | None = None
