"""The rules find each broken promise in a history, and nothing in a clean one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from escapement.errors import StorageError, StorageUnavailable
from histories.checker import violations
from histories.history import Amendment, Arrival, Consumer, History, Message, Sent, Way
from stress.shown import unshown

T0_MS = 1_000_000


class SettableClock:
    """Starts at ``T0_MS``."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s

    def now_ms(self) -> int:
        return T0_MS + round(self.at_s * 1000)


@dataclass(eq=False)
class Cable:
    ended_s: float | None = None


class Told:
    """A history, and what tells it of deliveries.

    Three messages (offsets 10 to 12) came to the subscriptions ``a`` and ``b``, which keeps the
    order of keys, and in the order of the log to ``l``. Message 2 (offset 12) is poison: ``a`` has
    its dead letter 5, which is redriven as offset 13.
    """

    def __init__(self, *, simulated: bool) -> None:
        self.clock = SettableClock()
        self.history = history = History(self.clock)
        self.simulated = simulated
        self.cables: dict[str, Cable] = {name: Cable() for name in "abl"}
        self.process = 1
        self.sent = 0
        history.topics = {"t": ["a", "b", "l"]}
        history.kinds = {"a": "shared", "b": "key", "l": "log"}
        history.max_deliveries = {"a": 2}
        history.sending_s = 1.0
        history.expiry_s = 1800.0
        history.troubles = None if simulated else []
        for offset in (10, 11, 12):
            history.confirm(history.publish("t", "k", T0_MS), offset)
        self.clock.at_s = 10.0
        for name in "abl":
            for number, offset in ((0, 10), (1, 11), (2, 12), (2, 13)):
                arrival = self.deliver(name, number, offset)
                if (name, offset) != ("a", 12):
                    history.ack_sent.add((name, offset))
                    arrival.acked_s = self.clock.at_s
        history.list_dead_letters("a", {5: (2, 12)})
        history.dead_letters["a"].asked.add(5)
        history.list_dead_letters("a", {})

    @property
    def message(self) -> Message:
        return self.history.messages[0]

    def deliver(
        self, name: str, number: int, offset: int, *, again: bool = False, due_ms: int = T0_MS
    ) -> Arrival:
        """Let a message arrive a second after the one before, at a new consumer."""
        self.clock.at_s += 1
        self.sent += 1
        way = Way(self.cables[name])
        if self.simulated:
            way = Way(
                self.cables[name],
                self.process,
                Sent(self.clock.at_s, self.clock.now_ms(), self.sent),
            )
        arrival = Arrival(
            name,
            number,
            offset,
            due_ms,
            "k",
            again,
            self.clock.at_s,
            self.clock.now_ms(),
            way,
            Consumer(name),
        )
        self.history.arrive(arrival)
        return arrival

    def first(self, name: str, offset: int) -> Arrival:
        return self.history.courses[name, offset][0]

    def forget(self, name: str, offset: int) -> None:
        """Undo the deliveries of a copy, and its acknowledgement."""
        for arrival in self.history.courses.pop((name, offset)):
            self.history.arrivals.remove(arrival)
        self.history.ack_sent.discard((name, offset))

    def amend(
        self, due_ms: int | None, *handed: str, done: bool | None = True, once: bool = True
    ) -> None:
        now_ms = T0_MS + 1000
        self.message.amendments.append(
            Amendment(due_ms, now_ms, now_ms, done, frozenset(handed), once)
        )

    @property
    def violations(self) -> list[str]:
        return list(violations(self.history, drained=True))


def lose_first_delivery(told: Told) -> None:
    told.forget("a", 10)


def lose_confirmed_message(told: Told) -> None:
    told.history.confirm(told.history.publish("t", "k", T0_MS), -1)


def lose_acknowledgement_and_dead_letter(told: Told) -> None:
    told.history.dead_letters["a"].seen.clear()


def lose_redriven_copy(told: Told) -> None:
    for name in "abl":
        told.forget(name, 13)
    told.history.copies[2].remove(13)


def lose_redriven_copy_of_one(told: Told) -> None:
    told.forget("b", 13)


def lose_dead_letter_without_request(told: Told) -> None:
    told.history.dead_letters["a"].asked.clear()


def lose_message_that_was_delivered_before_a_cancel(told: Told) -> None:
    told.amend(None, done=None)
    told.history.ack_sent.remove(("a", 10))


def lose_message_that_a_cancel_left(told: Told) -> None:
    told.amend(None, "a", "b", "l")
    told.forget("a", 10)


def dead_letter_twice(told: Told) -> None:
    told.history.list_dead_letters("a", {6: (2, 12)})


def dead_letter_of_an_unknown_copy(told: Told) -> None:
    told.history.list_dead_letters("a", {6: (0, 14)})


def store_twice(told: Told) -> None:
    for name in "abl":
        told.deliver(name, 1, 14)
        told.history.ack_sent.add((name, 14))


def store_refused_message(told: Told) -> None:
    told.message.refused = True


def store_two_messages_at_one_offset(told: Told) -> None:
    told.deliver("a", 1, 10, again=True).consumer.left_s = 0.0


def deliver_to_another_topic(told: Told) -> None:
    told.history.topics["u"] = ["x"]
    told.history.kinds["x"] = "shared"
    told.cables["x"] = Cable()
    told.deliver("x", 0, 10)


def deliver_early(told: Told) -> None:
    told.first("a", 10).due_ms = T0_MS + 3_600_000


def deliver_before_the_time_that_was_asked_for(told: Told) -> None:
    told.message.earliest_ms = T0_MS + 1


def deliver_before_moved_time(told: Told) -> None:
    told.amend(T0_MS + 60_000, "b")


def deliver_to_one_that_a_reschedule_left_early(told: Told) -> None:
    told.message.earliest_ms = T0_MS + 60_000
    told.amend(T0_MS, "a")


def lose_message_that_a_cancel_found_delivered(told: Told) -> None:
    told.amend(None, done=False, once=False)
    told.forget("a", 10)


def deliver_cancelled_message(told: Told) -> None:
    told.amend(None, "b")


def deliver_after_durable_ack(told: Told) -> None:
    told.history.acked_s["a", 10] = told.clock.at_s
    told.clock.at_s += 0.5
    told.deliver("a", 0, 10, again=True)


def redeliver_unmarked(told: Told) -> None:
    told.first("a", 10).returned_s = told.clock.at_s
    told.deliver("a", 0, 10)


def redeliver_without_a_cause(told: Told) -> None:
    told.deliver("a", 0, 10, again=True)
    if not told.simulated:  # one trouble ended long before, and one began afterwards
        told.history.trouble(1.0, 9.0)
        told.history.trouble(told.clock.at_s + 1, told.clock.at_s + 2)


def redeliver_on_one_connection_in_a_trouble(told: Told) -> None:
    if not told.simulated:
        told.history.trouble(0.0, 3_600.0)
    told.deliver("a", 0, 10, again=True)


def redeliver_twice_after_one_return(told: Told) -> None:
    told.first("a", 10).returned_s = told.clock.at_s
    for _ in range(2):
        told.deliver("a", 0, 10, again=True)


def redeliver_twice_after_one_take_over(told: Told) -> None:
    told.process += 1
    told.cables["a"] = Cable()
    for _ in range(2):
        told.deliver("a", 0, 10, again=True)


def deliver_out_of_order(told: Told) -> None:
    told.forget("b", 10)
    told.deliver("b", 0, 10)
    told.history.ack_sent.add(("b", 10))


def deliver_log_out_of_order(told: Told) -> None:
    told.forget("l", 10)
    told.deliver("l", 0, 10)
    told.history.ack_sent.add(("l", 10))


def end_a_broker(told: Told) -> None:
    told.history.end("host", StorageError("the disk cannot be written"))


def end_a_broker_without_naming_the_file(told: Told) -> None:
    told.history.disk_failed = True
    told.history.end("host", OSError("no space left"))


def surprise_a_client(told: Told) -> None:
    told.history.surprises.append("surprise: a sequence was forgotten")


BROKEN: list[tuple[Callable[[Told], None], str]] = [
    (lose_first_delivery, "lost"),
    (lose_confirmed_message, "lost"),
    (lose_acknowledgement_and_dead_letter, "lost"),
    (lose_redriven_copy, "lost"),
    (lose_redriven_copy_of_one, "lost"),
    (lose_dead_letter_without_request, "lost"),
    (lose_message_that_was_delivered_before_a_cancel, "lost"),
    (lose_message_that_a_cancel_left, "lost"),
    (dead_letter_twice, "doubled"),
    (dead_letter_of_an_unknown_copy, "doubled"),
    (store_twice, "doubled"),
    (store_refused_message, "doubled"),
    (store_two_messages_at_one_offset, "mixed"),
    (deliver_to_another_topic, "mixed"),
    (deliver_early, "early"),
    (deliver_before_the_time_that_was_asked_for, "early"),
    (deliver_before_moved_time, "early"),
    (deliver_to_one_that_a_reschedule_left_early, "early"),
    (lose_message_that_a_cancel_found_delivered, "lost"),
    (deliver_cancelled_message, "cancelled"),
    (deliver_after_durable_ack, "again"),
    (redeliver_unmarked, "unmarked"),
    (redeliver_without_a_cause, "repeated"),
    (redeliver_on_one_connection_in_a_trouble, "twice"),
    (redeliver_twice_after_one_return, "repeated"),
    (redeliver_twice_after_one_take_over, "repeated"),
    (deliver_out_of_order, "order"),
    (deliver_log_out_of_order, "order"),
    (end_a_broker, "ended"),
    (end_a_broker_without_naming_the_file, "ended"),
    (surprise_a_client, "surprise"),
]


@pytest.mark.parametrize("simulated", [False, True], ids=["real", "simulated"])
@pytest.mark.parametrize(("break_it", "kind"), BROKEN)
def test_broken_promise_is_found(
    break_it: Callable[[Told], None], kind: str, simulated: bool
) -> None:
    """P6, Q9, B1: the rules name the kind of the one fault, whatever facts are known."""
    told = Told(simulated=simulated)
    break_it(told)
    found = told.violations
    assert any(line.startswith((f"{kind}:", f"{kind} (")) for line in found), found


def explain_by_return_and_trouble(told: Told) -> None:
    told.first("a", 10).returned_s = told.clock.at_s
    told.deliver("a", 0, 10, again=True)
    if told.simulated:
        told.process += 1  # another process takes over
    else:
        told.history.trouble(told.first("a", 11).arrived_s + 0.1, told.clock.at_s)
        told.cables["a"] = Cable()
    told.deliver("a", 1, 11, again=True)


def explain_by_ack_wait(told: Told) -> None:
    told.first("a", 10).acked_s = None
    told.clock.at_s += 1_800
    told.deliver("a", 0, 10, again=True)


def explain_by_leaving(told: Told) -> None:
    first = told.first("a", 10)
    first.acked_s = None
    first.consumer.left_s = told.clock.at_s
    told.deliver("a", 0, 10, again=True)


def confirm_after_a_later_one_was_delivered(told: Told) -> None:
    """Q9: the broker orders durable messages only."""
    deliver_out_of_order(told)
    told.message.confirmed_ms = T0_MS + 3_600_000


def cancel_before_delivery(told: Told) -> None:
    told.amend(None, "b", "l")
    told.forget("a", 10)


def cancel_again_after_a_reconnect(told: Told) -> None:
    """The broker cannot know whether another one delivered the message before the first time."""
    told.amend(None, "a", "b", "l", once=False)
    told.forget("a", 10)


def run_now_again_after_a_reconnect(told: Told) -> None:
    """The first time made the message due, and so it had been delivered before the second."""
    told.message.earliest_ms = T0_MS + 60_000
    told.amend(T0_MS, "a", "b", once=False)


def cancel_without_an_answer(told: Told) -> None:
    told.amend(None, done=None)
    told.forget("a", 10)


def end_a_broker_with_a_full_disk(told: Told) -> None:
    told.history.disk_failed = True
    end_a_broker(told)
    told.history.end("host", StorageError("the segment cannot be read: too many open files"))
    told.history.end("host", StorageUnavailable("no database"))


def publish_without_a_receipt(told: Told) -> None:
    told.history.publish("t", "k", T0_MS)


@pytest.mark.parametrize("simulated", [False, True], ids=["real", "simulated"])
@pytest.mark.parametrize(
    "happens",
    [
        explain_by_return_and_trouble,
        explain_by_ack_wait,
        explain_by_leaving,
        confirm_after_a_later_one_was_delivered,
        cancel_before_delivery,
        cancel_again_after_a_reconnect,
        run_now_again_after_a_reconnect,
        cancel_without_an_answer,
        end_a_broker_with_a_full_disk,
        publish_without_a_receipt,
        lambda told: None,
    ],
)
def test_correct_history_breaks_no_promise(
    happens: Callable[[Told], None], simulated: bool
) -> None:
    """P6: the rules allow what clients cannot know."""
    told = Told(simulated=simulated)
    happens(told)
    assert told.violations == []


def test_delivery_may_overtake_a_durable_ack_if_its_sending_is_not_known() -> None:
    """V2: deliveries and confirmations travel over different connections."""
    found = {}
    for simulated in (False, True):
        told = Told(simulated=simulated)
        told.first("a", 10).returned_s = told.clock.at_s
        told.history.acked_s["a", 10] = told.clock.at_s + 0.5
        told.deliver("a", 0, 10, again=True)
        found[simulated] = told.violations
    assert found[False] == []
    assert len(found[True]) == 1


def test_only_a_trouble_explains_a_repeat_of_an_acknowledged_message() -> None:
    """V2: if troubles are not known, the acknowledgement may have been on its way for long."""
    found = {}
    for simulated in (False, True):
        told = Told(simulated=simulated)
        told.clock.at_s += 3_600
        told.deliver("a", 0, 10, again=True)
        found[simulated] = told.violations
    (line,) = found[False]
    assert line.startswith("repeated (5)")
    assert found[True] == []


def test_message_may_die_unread_after_as_many_troubles_as_deliveries() -> None:
    """P6: a delivery counts when it is sent, and a kill loses unread data."""
    told = Told(simulated=False)
    told.forget("a", 12)
    told.history.trouble(-1.0, -1.0)  # before the message was due
    told.history.trouble(1.0, 1.0)
    (found,) = told.violations
    assert found.startswith("unknown")
    told.history.trouble(2.0, 2.0)
    assert told.violations == []


def test_what_never_happened_in_a_run_is_named() -> None:
    """A run without it proves nothing about it. Other counts may be zero."""
    counts: dict[str, Any] = dict.fromkeys(unshown({}, ["SIGKILL", "damaged index"]), 1)
    assert {"published", "redriven", "SIGKILL", "damaged index"} <= counts.keys()
    assert unshown(counts, ["SIGKILL", "damaged index"]) == []
    del counts["redriven"]
    counts |= {"damaged index": 0, "publishes without a receipt": 0}
    assert unshown(counts, ["SIGKILL", "damaged index"]) == ["redriven", "damaged index"]
