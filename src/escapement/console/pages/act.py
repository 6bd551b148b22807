"""Act: cancel, reschedule, run now or send back one message, a selection, or all that match.

A form of another page names the messages. This page first shows how many there are, and asks for
what the action needs. Named messages are then changed at once, with an outcome for each. For all
that match, the broker starts a bulk change, whose page shows the progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

import msgspec
from starlette.responses import Response

from escapement.client.administration.bulk import BulkChange
from escapement.client.administration.outcome import Outcome, Outcomes
from escapement.clock import moment
from escapement.console.finding.filter import BY_INDEX, Filter
from escapement.console.pages import find
from escapement.console.text.histories import outcome
from escapement.console.text.times import time_of
from escapement.console.visit.view import Page, View
from escapement.errors import InvalidRequest
from escapement.names import full_name, read_message_id
from escapement.protocol.amend_status import AmendStatus

# The most messages of a selection, and the most that a page names before they are changed.
MOST_SELECTED: Final = 1_000
_MOST_NAMED: Final = 20

Action = Literal["cancel", "reschedule", "run_now", "redrive"]


class Words(NamedTuple):
    """An action in words."""

    title: str
    button: str
    done: str
    hint: str


WORDS: Final[dict[str, Words]] = {
    "cancel": Words(
        "Cancel",
        "Cancel them",
        "Cancelled",
        "A cancelled message is never delivered. Only a subscription that has received it before "
        "keeps it. This cannot be undone.",
    ),
    "reschedule": Words(
        "Reschedule",
        "Reschedule them",
        "Rescheduled",
        "The messages get a new due time, for each subscription that has not received them yet.",
    ),
    "run_now": Words(
        "Run now",
        "Run them now",
        "Due now",
        "The messages are due at once, for each subscription that has not received them yet.",
    ),
    "redrive": Words(
        "Send back",
        "Send them back",
        "Sent back",
        "Each dead letter is published again in its original topic, exactly once, and leaves the "
        "dead-letter topic.",
    ),
}


class Asked(Filter):
    """An action, and its messages: those named by ``id``, or all that match the filter.

    Attributes:
      subscription: for a redrive, the subscription that gave the messages up; ``where`` is the
        original topic.
      dead_letter_topic: for a redrive, where the dead letters are, if not in the subscription's
        dead-letter topic.
      back: the list from which the messages were selected.
    """

    action: Action = "cancel"
    id: list[str] = msgspec.field(default_factory=list)
    subscription: str = ""
    dead_letter_topic: str = ""
    back: str = ""


class Change(Asked):
    """A form that the user has confirmed.

    Attributes:
      delay, at: the new due time of a reschedule.
      spread: scatters the due times over this span.
      sure: whether the user confirms what cannot be undone.
    """

    delay: str = ""
    at: str = ""
    spread: str = ""
    sure: bool = False


async def _preview(view: View) -> Response:
    """Show how many messages an action would change, and the form that does it."""
    asked = view.sent(Asked)
    asked.exact(view.zone)
    asked = asked.as_of(view.now_ms)
    if asked.id:
        topics = _by_topic(asked.id)
        complete, messages = True, sum(map(len, topics.values()))
    else:
        topic = _topic(asked)
        topics = {topic: []}
        found = await view.broker.bulk.preview(
            topic, asked.subscription or None, **_lie_in(asked), **asked.bulk()
        )
        complete, messages = found.complete, found.messages
    return view.show(
        "messages/act.html",
        asked=asked,
        topics=list(topics),
        named=asked.id[:_MOST_NAMED],
        left_out=max(len(asked.id) - _MOST_NAMED, 0),
        messages=messages,
        complete=complete,
        words=WORDS[asked.action],
    )


async def _list_again(view: View) -> Response:
    """Show the page Find again, if the action was sent from there."""
    asked = view.sent(Asked)
    if asked.back.split("?")[0] == find.PATH:
        query = find.Query.of(asked.back)
    elif asked.where and not asked.subscription:
        query = view.sent(find.Query)
    else:
        raise InvalidRequest("The form is not of the page Find.")
    query.forget_inexact(view.zone)
    return await find.show_list(view, query)


async def _act(view: View) -> Response:
    """Carry out an action."""
    change = view.sent(Change)
    change.exact(view.zone)
    change = change.as_of(view.now_ms)
    if change.action == "cancel" and not change.sure:
        raise InvalidRequest("Tick the box to confirm that the messages are to be cancelled.")
    if not change.id:
        job = await _start(view, change)
        return view.go(f"/jobs/{job.topic}/{job.id}", f"{WORDS[change.action].title}: started.")
    outcomes: list[Outcome] = []
    for topic, offsets in _by_topic(change.id).items():
        outcomes += await _amend(view, change, topic, offsets)
    return view.show(
        "messages/act_done.html",
        back=change.back if change.back.startswith(f"{find.PATH}?") else find.PATH,
        words=WORDS[change.action],
        counts=_counts(outcomes),
        rows=[
            (one.id, outcome(one.status, one.handed, WORDS[change.action].done), one.done)
            for one in outcomes
        ],
    )


async def _amend(view: View, change: Change, topic: str, offsets: Sequence[int]) -> Outcomes:
    broker = view.acting()
    if change.action == "cancel":
        return await broker.cancel(offsets, topic=topic)
    spread = change.spread or None
    if change.action == "run_now":
        return await broker.run_now(offsets, topic=topic, spread=spread)
    if change.action == "redrive":
        raise InvalidRequest("Send dead letters back by a filter.")
    delay, at = _when(view, change)
    return await broker.reschedule(offsets, topic=topic, delay=delay, at=at, spread=spread)


async def _start(view: View, change: Change) -> BulkChange:
    """Start the bulk change of all messages that match."""
    bulk, topic, conditions = view.acting().bulk, _topic(change), change.bulk()
    conditions["reason"] = view.form.get("reason", "").strip() or None
    if change.action == "cancel":
        return await bulk.cancel(topic, **conditions)
    conditions["spread"] = change.spread or None
    if change.action == "run_now":
        return await bulk.run_now(topic, **conditions)
    if change.action == "redrive":
        return await bulk.redrive(topic, change.subscription, **_lie_in(change), **conditions)
    delay, at = _when(view, change)
    return await bulk.reschedule(topic, delay=delay, at=at, **conditions)


def _when(view: View, change: Change) -> tuple[str | None, datetime | None]:
    """Return the delay or the time of a reschedule."""
    if bool(change.delay) == bool(change.at):
        raise InvalidRequest("Give either a delay or a time.")
    return change.delay or None, moment(time_of(change.at, view.zone)) if change.at else None


def _topic(asked: Asked) -> str:
    """Return the topic of all messages that match a filter.

    Raises:
      InvalidRequest: if the filter does not name one, or its state is in no index.
    """
    if not asked.where:
        raise InvalidRequest("Select at least one message.")
    if asked.state not in BY_INDEX:
        raise InvalidRequest("Messages in this state must be selected one by one.")
    return full_name(asked.where)


def _lie_in(asked: Asked) -> dict[str, Any]:
    return {"dead_letter_topic": asked.dead_letter_topic or None}


def _by_topic(ids: Sequence[str]) -> dict[str, list[int]]:
    """Return the offsets of messages by topic, without duplicates.

    Raises:
      InvalidRequest: if an id is not valid, or there are too many.
    """
    if len(ids) > MOST_SELECTED:
        raise InvalidRequest(f"Select at most {MOST_SELECTED:,} messages, or all that match.")
    found: dict[str, dict[int, None]] = {}
    for id in ids:
        topic, offset = read_message_id(id)
        found.setdefault(topic, {})[offset] = None
    return {topic: list(offsets) for topic, offsets in found.items()}


def _counts(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """Return how many messages were changed, and how many were not."""
    by_status = Counter(one.status for one in outcomes)
    done = by_status[AmendStatus.DONE]
    return done, len(outcomes) - done


PAGES: Final = [
    Page("/act", _preview, method="POST", again=_list_again),
    Page("/act/now", _act, method="POST", again=_preview),
]
