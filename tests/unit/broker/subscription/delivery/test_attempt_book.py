"""The attempts that a subscription remembers, compared with those in its journal."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.log.amendments import Amendments
from escapement.broker.subscription.delivery.attempt_book import AttemptBook
from escapement.broker.subscription.delivery.in_flight import InFlight
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.retries.retries import Retries
from escapement.broker.subscription.start_position import NEVER_MS
from escapement.message import Int64s
from escapement.storage.commit.items import Attempts
from escapement.storage.encoding.attempts import MOST_ATTEMPTS, AttemptTable
from escapement.storage.offsets import OffsetSet

# A delivery is recorded when its messages have been in flight for this long.
AFTER_MS = 10
OFFSETS = st.sets(st.integers(0, 7), min_size=1)

# The number of attempts of messages and the times of their next ones, by offset.
Known = dict[int, tuple[int, int]]


def known(table: AttemptTable | Attempts) -> Known:
    """Return what the last row of each message in a table says."""
    counts = AttemptTable(table.offsets, table.attempts, table.next_ms, table.due_ms).counts
    rows = zip(table.offsets.tolist(), counts.tolist(), table.next_ms.tolist(), strict=True)
    return {offset: (count, next_ms) for offset, count, next_ms in rows}


def tried(counts: dict[int, int]) -> Rows:
    """Return rows of messages with these numbers of attempts. A message is due at its offset."""
    column: Int64s = np.array(sorted(counts), np.int64)
    attempts = np.array([counts[offset] for offset in column.tolist()], np.int64)
    return Rows(column, column, attempts)


@dataclass
class Model:
    """A book whose messages are delivered and given back, and the attempts that it handed in."""

    in_flight: InFlight = field(default_factory=InFlight)
    amendments: Amendments = field(default_factory=Amendments)
    journal: Known = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)  # all attempts of each message
    now_ms: int = 0

    def __post_init__(self) -> None:
        retries = Retries(0)
        self.book = AttemptBook(1, 2, self.submitted, self.in_flight, retries, self.amendments)

    def submitted(self, attempts: Attempts) -> None:
        assert (attempts.topic_id, attempts.subscription_id) == (1, 2)
        self.journal |= known(attempts)

    def deliver(self, offsets: set[int]) -> None:
        """Deliver messages, except those in flight and those cancelled before any delivery."""
        fresh = {
            offset
            for offset in offsets
            if offset not in self.in_flight.offsets
            and (offset in self.counts or offset not in self.amendments.cancelled)
        }
        for offset in fresh:
            self.counts[offset] = self.counts.get(offset, 0) + 1
        if fresh:
            rows = tried({offset: self.counts[offset] for offset in fresh})
            deadline_ms = np.full(rows.height, NEVER_MS)
            takers = [(1, rows.height)]
            made = self.in_flight.deliver(takers, rows, deadline_ms, self.now_ms, rows.due_ms)
            for delivery_id, _ in made:
                self.in_flight.note_sent(delivery_id)

    def give_back(self, offsets: set[int]) -> None:
        rows = self.in_flight.take_back(np.array(sorted(offsets), np.int64))
        if rows.height:
            self.book.state(rows, np.full(rows.height, self.now_ms + 5))

    def record(self) -> None:
        self.now_ms += AFTER_MS // 2
        again = self.book.record_sent(self.now_ms, AFTER_MS)
        assert again == self.in_flight.has_unrecorded

    def idle(self) -> Rows:
        """Return the messages that were delivered and are not in flight."""
        return tried(
            {
                offset: count
                for offset, count in self.counts.items()
                if offset not in self.in_flight.offsets
            }
        )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["deliver", "deliver", "give back", "keep"]), OFFSETS),
        st.tuples(st.sampled_from(["record", "checkpoint", "checkpoint of all"]), st.none()),
    ),
    max_size=30,
)


@given(STEPS)
def test_checkpoint_has_all_attempts_that_the_journal_has(
    steps: list[tuple[str, set[int] | None]],
) -> None:
    """Q2, V4: a checkpoint trims the journal, so an attempt that it lacks would be forgotten."""
    model = Model()
    stored: Known = {}
    for step, offsets in steps:
        match step:
            case "deliver":
                model.deliver(offsets or set())
            case "give back":
                model.give_back(offsets or set())
            case "keep":  # these are being cancelled
                column = np.array(sorted(offsets or ()), np.int64)
                model.book.keep(column)
                fresh = column[~model.amendments.cancelled.contains(column)]
                model.amendments.cancelled.take(fresh)
            case "record":
                model.record()
            case "checkpoint":
                stored |= known(model.book.take_new())
                assert stored == model.journal
                assert not model.book.has_new
            case "checkpoint of all":
                everything = known(model.book.take_all(model.idle(), model.now_ms))
                counts = {offset: count for offset, (count, _) in model.journal.items()}
                # A delivery of a cancelled message counts at once.
                for offset in counts:
                    if offset in model.amendments.cancelled and offset in model.in_flight.offsets:
                        counts[offset] = model.counts[offset]
                assert {offset: count for offset, (count, _) in everything.items()} == counts
                assert not model.book.has_new
                stored = dict(model.journal)


RECOVERED = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 7), st.tuples(st.integers(1, 9), st.integers(0, 99))),
        st.booleans(),
    ),
    max_size=6,
)


@given(RECOVERED, st.sets(st.integers(0, 7)))
def test_last_recovered_attempt_of_each_message_counts(
    pieces: list[tuple[Known, bool]], acknowledged: set[int]
) -> None:
    """V4: those that only the journal has are new to the next checkpoint."""
    book = Model().book
    last: Known = {}
    unstored: Known = {}
    for piece, stored in pieces:
        next_ms = np.array([piece[offset][1] for offset in sorted(piece)], np.int64)
        rows = tried({offset: count for offset, (count, _) in piece.items()})
        book.recover(rows, next_ms, stored=stored)
        last |= piece
        unstored |= {} if stored else piece
    assert book.has_recovered(np.arange(8)).tolist() == [offset in last for offset in range(8)]
    done = OffsetSet()
    done.add(np.array(sorted(acknowledged), np.int64))
    rows, next_ms = book.take_recovered(done)
    found = zip(rows.offsets.tolist(), rows.counts.tolist(), next_ms.tolist(), strict=True)
    assert {offset: (count, ms) for offset, count, ms in found} == {
        offset: piece for offset, piece in last.items() if offset not in acknowledged
    }
    assert not book.has_recovered(np.arange(8)).any()
    assert known(book.take_new()) == unstored
    assert not book.is_used


def test_number_of_attempts_stops_growing_before_it_overflows() -> None:
    """V4: the flag in the next bit must stay as it is."""
    model = Model()
    model.counts = {3: MOST_ATTEMPTS}
    for _ in range(3):
        model.deliver({3})
        model.record()
        model.record()
        model.in_flight.take_back(np.array([3]))
        assert model.journal == {3: (MOST_ATTEMPTS, 3)}
        model.counts = {3: MOST_ATTEMPTS}  # the next delivery begins with the recorded number
