"""The administrative operations (*verbs*) on groups of messages: list, get, close, delete."""

from __future__ import annotations

from typing import Final, Literal, TypedDict

import numpy as np

from escapement.broker.admin.arguments import Arguments
from escapement.broker.admin.result import Deleted
from escapement.broker.admin.verb import Verb, topic_of
from escapement.broker.broker import Broker
from escapement.broker.topic.topic import Topic
from escapement.errors import InvalidRequest, NotFound
from escapement.message import (
    DEFAULT_PRIORITY,
    MAX_PRIORITY,
    NO_TIMES,
    Blobs,
    MessageBatch,
    Times,
)
from escapement.storage.inbox.entry import InboxEntry
from escapement.storage.inbox.event_group import Completion

# A placeholder: a follow-up, the message published when a group is finished, gets its source id
# when it is published.
_SOURCE: Final = "group"


CompletionState = Literal["waiting", "fired", "void"]


class ListedCompletion(TypedDict):
    """The follow-up of a group for one subscription. It is void if that was deleted."""

    subscription: str
    target: str
    state: CompletionState
    remaining: int | None
    closed_at_ms: int
    fired_at_ms: int | None


class ListedGroup(TypedDict):
    """The state of a group."""

    topic: str
    group: str
    state: Literal["open", "closed"]
    messages: int
    completions: list[ListedCompletion]


async def _list_groups(broker: Broker, given: Arguments) -> list[ListedGroup]:
    async with broker.answering:
        topic = topic_of(broker, given)
        given.end()
        return [_plain(broker, topic, group) for group in topic.groups.names()]


async def _get_group(broker: Broker, given: Arguments) -> ListedGroup:
    topic = topic_of(broker, given)
    group = given.text("group")
    given.end()
    if group not in topic.groups.names():
        raise NotFound(f"{topic.name.full} has no group {group}")
    return _plain(broker, topic, group)


async def _close_group(broker: Broker, given: Arguments) -> ListedGroup:
    name = given.topic_name("topic")
    group, subscription = given.text("group"), given.text("subscription")
    follow_up = _follow_up(given)
    given.end()
    await broker.services.group_completer.close(name, group, subscription, follow_up)
    return _plain(broker, broker.registry.topic(name), group)


def _follow_up(given: Arguments) -> InboxEntry:
    target = given.topic_name("target")
    payload, key = given.optional_blob("payload"), given.optional_blob("key")
    properties = given.optional_blob("properties")
    priority = given.optional_offset("priority")
    delay_ms, at_ms = given.optional_offset("delay_ms"), given.optional_offset("at_ms")
    priorities = None
    if priority is not None and priority != DEFAULT_PRIORITY:
        if priority > MAX_PRIORITY:
            raise InvalidRequest(f"a priority is from 0 to {MAX_PRIORITY}, not {priority}")
        priorities = np.array([priority], np.uint8)
    if delay_ms is not None and at_ms is not None:
        raise InvalidRequest("a follow-up takes delay_ms or at_ms, not both")
    times = NO_TIMES
    if delay_ms is not None:
        times = Times(delay_ms=np.array([delay_ms]))
    elif at_ms is not None:
        times = Times(at_ms=np.array([at_ms]))
    batch = MessageBatch(
        Blobs.of([payload]),
        Blobs.of([key]) if key else None,
        Blobs.of([properties]) if properties else None,
        priorities,
    )
    return InboxEntry(target.full, _SOURCE, batch.encode(), 1, times)


async def _delete_group(broker: Broker, given: Arguments) -> Deleted:
    name = given.topic_name("topic")
    group = given.text("group")
    given.end()
    await broker.services.group_completer.delete(name, group)
    return {"deleted": group}


def _plain(broker: Broker, topic: Topic, group: str) -> ListedGroup:
    completions = topic.groups.completions.get(group, [])
    return {
        "topic": topic.name.full,
        "group": group,
        "state": "closed" if completions else "open",
        "messages": len(topic.groups.members.get(group, ())),
        "completions": [_completion(broker, topic, completion) for completion in completions],
    }


def _completion(broker: Broker, topic: Topic, completion: Completion) -> ListedCompletion:
    subscription = broker.services.activation.subscriptions.get(completion.subscription_id)
    state: CompletionState = "fired"
    remaining = None
    if completion.fired_at_ms is None:
        state = "void"
        if subscription is not None:
            state = "waiting"
            remaining = topic.groups.remaining(completion, subscription, topic.amendments)
    return {
        "subscription": completion.subscription,
        "target": completion.target,
        "state": state,
        "remaining": remaining,
        "closed_at_ms": completion.closed_at_ms,
        "fired_at_ms": completion.fired_at_ms,
    }


VERBS: Final[dict[str, Verb]] = {
    "groups.list": _list_groups,
    "groups.get": _get_group,
    "groups.close": _close_group,
    "groups.delete": _delete_group,
}
