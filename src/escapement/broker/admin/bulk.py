"""The administrative operations (*verbs*) on bulk changes: preview, start, list, show, stop."""

from __future__ import annotations

from typing import Final, Literal, TypedDict

from escapement.broker.admin.arguments import Arguments, Plain
from escapement.broker.admin.conditions import take_sought
from escapement.broker.admin.content import readable, readable_key
from escapement.broker.admin.verb import MAX_ROWS, Verb
from escapement.broker.broker import Broker
from escapement.broker.bulk.bulk_request import BulkRequest
from escapement.broker.bulk.selection import filter_of
from escapement.errors import InvalidRequest
from escapement.names import NamespaceName, TopicName
from escapement.storage.bulk_change import Action, BulkChange, Filter

_ACTIONS: Final = ("cancel", "reschedule", "run_now", "redrive")
# The most messages that a preview counts, a little more or less.
_MOST_COUNTED: Final = 1_000_000
# The most characters of a reason.
_REASON_LENGTH: Final = 1_000


class ListedBulkChange(TypedDict):
    """A bulk change: its request, its state and the number of its messages by outcome."""

    id: int
    topic: str
    action: Literal["cancel", "reschedule", "run_now", "redrive"]
    subscription: str | None
    dead_letter_topic: str | None
    from_at_ms: int | None
    until_at_ms: int | None
    key: str | None
    properties: dict[str, Plain]
    new_due_at_ms: int | None
    spread_ms: int | None
    state: Literal["selecting", "running", "done", "stopped", "failed"]
    messages: int
    done: int
    delivered: int
    skipped: int
    error: str | None
    role: str | None
    reason: str | None
    created_at_ms: int
    updated_at_ms: int
    ended_at_ms: int | None


class BulkPreview(TypedDict):
    """The number of messages that match, and whether all messages were looked at."""

    messages: int
    complete: bool


async def _preview(broker: Broker, given: Arguments) -> BulkPreview:
    wanted = _wanted(given)
    given.end()
    changes = broker.services.bulk_changes
    target, _ = await changes.target(wanted)
    turn = broker.look(by_content=True)
    found = await changes.selector.preview(target, wanted.filter, _MOST_COUNTED, turn)
    return {"messages": found.messages, "complete": found.complete}


async def _start(broker: Broker, given: Arguments) -> ListedBulkChange:
    wanted = _wanted(given)
    given.end()
    return _plain(await broker.services.bulk_changes.start(wanted))


async def _list(broker: Broker, given: Arguments) -> list[ListedBulkChange]:
    within = given.optional_text("namespace")
    given.end()
    prefix = "" if within is None else NamespaceName.parse(within).full + "/"
    seen = given.caller.coverage("peek")
    async with broker.answering:
        changes = broker.services.bulk_changes.all()
        found = [one for one in changes if one.topic.startswith(prefix) and one.topic in seen]
        return [_plain(one) for one in found[:MAX_ROWS]]


async def _show(broker: Broker, given: Arguments) -> ListedBulkChange:
    topic, id = given.topic_name("topic"), given.number("id")
    given.end()
    return _plain(await broker.services.bulk_changes.find(topic, id))


async def _stop(broker: Broker, given: Arguments) -> ListedBulkChange:
    topic, id = given.topic_name("topic"), given.number("id")
    given.end()
    return _plain(await broker.services.bulk_changes.stop(topic, id))


def _wanted(given: Arguments) -> BulkRequest:
    """Take the arguments of a bulk change."""
    topic, action = given.topic_name("topic"), given.optional_choice("action", _ACTIONS)
    subscription = given.optional_text("subscription") or ""
    lie_in = given.optional_text("dead_letter_topic")
    filter = filter_of(take_sought(given))
    everything = given.flag("everything")
    delay_ms, at_ms = given.optional_offset("delay_ms"), given.optional_number("at_ms")
    spread_ms = given.optional_number("spread_ms") or 0
    reason = given.optional_text("reason") or given.caller.origin.reason
    if action is None:
        raise InvalidRequest(f"A bulk change needs 'action' as one of {', '.join(_ACTIONS)}.")
    if (filter == Filter()) is not everything:
        raise InvalidRequest(
            "A bulk change needs conditions (from_ms, until_ms, key, properties), or 'everything' "
            "as true, not both."
        )
    if (action == "redrive") is not bool(subscription) or (lie_in and not subscription):
        raise InvalidRequest("A redrive needs 'subscription'. Other actions do not take it.")
    if (delay_ms is not None) + (at_ms is not None) != (action == "reschedule"):
        raise InvalidRequest(
            "A reschedule needs 'delay_ms' or 'at_ms', not both. Other actions take neither."
        )
    if action == "cancel" and spread_ms:
        raise InvalidRequest("A cancel takes no 'spread_ms'.")
    if len(reason) > _REASON_LENGTH:
        raise InvalidRequest(f"The reason may have at most {_REASON_LENGTH} characters.")
    return BulkRequest(
        topic,
        Action(action),
        filter,
        subscription,
        None if lie_in is None else TopicName.parse(lie_in),
        delay_ms,
        at_ms,
        spread_ms,
        given.caller.role,
        reason,
    )


def _plain(change: BulkChange) -> ListedBulkChange:
    filter, counts = change.filter, change.counts
    return {
        "id": change.id,
        "topic": change.topic,
        "action": change.action.value,
        "subscription": change.subscription or None,
        "dead_letter_topic": change.dead_letter_topic or None,
        "from_at_ms": filter.from_ms or None,
        "until_at_ms": filter.until_ms,
        "key": None if filter.key is None else readable_key(filter.key),
        "properties": readable(filter.properties),
        "new_due_at_ms": change.at_ms,
        "spread_ms": change.spread_ms or None,
        "state": change.state.value,
        "messages": change.total,
        "done": counts.done,
        "delivered": counts.delivered,
        "skipped": counts.skipped,
        "error": change.error or None,
        "role": change.role,
        "reason": change.reason or None,
        "created_at_ms": change.created_at_ms,
        "updated_at_ms": change.updated_at_ms,
        "ended_at_ms": change.ended_at_ms,
    }


VERBS: Final[dict[str, Verb]] = {
    "bulk.preview": _preview,
    "bulk.start": _start,
    "bulk.list": _list,
    "bulk.show": _show,
    "bulk.stop": _stop,
}
