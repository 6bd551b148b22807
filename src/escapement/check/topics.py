"""The check of messages: the log, the cursors and the index of each topic against each other.

Topics are checked in groups, and the log of a topic in stretches, so memory is bounded. A broker
may run meanwhile: each group is compared with the states of one moment, and surveyed again if the
index or the log changed in a way that makes the result invalid.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from escapement.check.index_files import of_former_owner
from escapement.check.problem import OF_THE_INDEX, of_bundle, problem
from escapement.doctor.finding import Finding, notice, ok
from escapement.errors import IndexDamaged
from escapement.names import TopicName
from escapement.pipeline.auditing.finding import Kind
from escapement.pipeline.auditing.index_count import IndexCount
from escapement.pipeline.auditing.recount import Recount, recount
from escapement.pipeline.auditing.survey import Survey, TopicCount
from escapement.storage import lease
from escapement.storage.bundles import bundle_count
from escapement.storage.catalog.catalog import read_named
from escapement.storage.data_directory import index_directory
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.index.segments.manifest import MANIFEST_NAME

# The topics whose states are in memory at once.
_TOPICS_AT_ONCE: Final = 100
# The maximum of attempts at a group of topics while a broker changes the index.
_TRIES: Final = 20
# How long to wait for a broker that has taken a bundle to discard its old index, before each try.
_DISCARD_S: Final = 0.5


# The problems after which a repair deletes the index of the bundle. If the log has messages beyond
# the end of a topic, the index may lack them.
_SPOILING: Final = OF_THE_INDEX | {Kind.TOPIC_END}


@dataclass(slots=True)
class TopicsCheck:
    """The check of all topics.

    Attributes:
      tell: called with a text about the progress.
      identity: the identity of the broker of the data directory; None if it is unknown.
      ends: for each topic whose log has rows beyond its end in the catalog, the end of its log.
      spoilt: the bundles whose index contradicts the log, or may lack messages.
    """

    engine: Engine
    connection: Connection
    data: Path
    tell: Callable[[str], None]
    identity: str | None = None
    ends: dict[int, int] = field(default_factory=dict)
    spoilt: set[int] = field(default_factory=set)
    _counts: list[TopicCount] = field(default_factory=list)

    def run(self) -> Iterator[Finding]:
        """Check all topics, bundle after bundle, and yield findings."""
        bundles = range(bundle_count(self.connection))
        for bundle_id in bundles:
            for one in self._of_bundle(bundle_id):
                if one.check == Kind.STALE_INDEX:
                    stale = of_former_owner(
                        one, self.engine, self.connection, bundle_id, self.identity
                    )
                    one = of_bundle(stale, bundle_id, len(bundles))
                if one.is_bad and one.check in _SPOILING:
                    self.spoilt.add(bundle_id)
                yield one
        messages, rows, pending = (
            sum(getattr(one, what) for one in self._counts)
            for what in ("messages", "rows", "pending")
        )
        yield ok(
            "log",
            f"topics: {len(self._counts):,}, log rows: {rows:,}, messages: {messages:,}, pending:"
            f" {pending:,}",
        )

    def _of_bundle(self, bundle_id: int) -> Iterator[Finding]:
        """Check the topics of a bundle in the order of their ids, and yield findings."""
        names = [name for name, _ in read_named(self.connection, bundle_id)]
        seen: set[Finding] = set()
        for first in range(0, len(names), _TOPICS_AT_ONCE):
            for one in self._group(names[first : first + _TOPICS_AT_ONCE], bundle_id):
                if one not in seen:  # each group would say that the whole index does not fit
                    seen.add(one)
                    yield one

    def _group(self, names: Sequence[TopicName], bundle_id: int) -> list[Finding]:
        for left in reversed(range(_TRIES)):
            found = self._attempt(names, self._index(bundle_id), patient=left > 0)
            if found is not None:
                return found
        which = f"topics {names[0].full} to {names[-1].full}"
        remedy = "Run the check while the broker has less to do."
        found = self._attempt(names, None)
        if found is None:
            text = f"{which} were not checked, because the log changed too often"
            return [notice("log", text, remedy)]
        text = f"{which} were not compared with the index, because it changed too often"
        return [notice("index", text, remedy), *found]

    def _index(self, bundle_id: int) -> IndexCount | None:
        if not (index_directory(self.data, bundle_id) / MANIFEST_NAME).exists():
            return None
        try:
            return IndexCount.open(self.data, bundle_id)
        except IndexDamaged:
            return None  # ``check_segments`` reports it

    def _attempt(
        self, names: Sequence[TopicName], index: IndexCount | None, *, patient: bool = False
    ) -> list[Finding] | None:
        """Return the findings of a group of topics, or None if a change makes them invalid.

        Args:
          patient: whether to wait for a broker that seems to be about to discard its index.
        """
        survey = Survey(self.engine, self.connection, names, index)
        if survey.is_unsettled:
            return None
        if patient and index is not None and survey.is_stale and self._owned(index.bundle_id):
            time.sleep(_DISCARD_S)
            return None
        counted = self._recounted(survey)
        if counted is None:
            return None
        self.ends |= survey.ends
        counts, contradictions = survey.held_against(counted)
        self._counts += counts
        findings = []
        for one in contradictions:
            text = f"{one.topic}: {one.what}" if one.topic else one.what
            findings.append(problem(one.kind, text))
        return findings

    def _owned(self, bundle_id: int) -> bool:
        """Return whether the broker of the data directory runs and has the bundle.

        Between the two steps of taking a bundle from another node, its lease and its index, the
        directory still has the index from before.
        """
        row = lease.look(self.engine, self.connection, bundle_id)
        return row is not None and row.owner_id == self.identity and row.left_ms > 0

    def _recounted(self, survey: Survey) -> list[Recount] | None:
        """Recount the stretches of a survey. Return None if the log forgot some meanwhile."""
        found = []
        for at, stretch in enumerate(survey.stretches, 1):
            self.tell(f"{stretch.topic}: stretch {at} of {len(survey.stretches)} of its group")
            found.append(recount(self.engine, stretch))
            if found[-1].forgotten:
                return None
        return found
