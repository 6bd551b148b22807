"""The table of all requests, and the rights that each of them needs.

A right is an action on a resource (``escapement.access``). The resource is a topic, a message
table, a schedule, a namespace (all its topics), or everything. Sessions check the rights of a
request before they carry it out. The commands of an open producer or consumer need no rights of
their own: the right was checked when it was opened, and the broker closes it when its role loses
the right. So no message costs a check.

To add a verb or a command, add its row here. A test compares the table with all verbs and commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from escapement.access.grant import Action
from escapement.access.pattern import ALL, ALL_TABLES, Pattern
from escapement.access.rights import Need
from escapement.errors import InvalidRequest
from escapement.names import NamespaceName
from escapement.protocol import commands as wire

# Returns the value of an argument of a verb, or of a field of a command; None if it is not given.
Get = Callable[[str], Any]


class Right(NamedTuple):
    """An action, and how to find the resource in the arguments of a request.

    ``resource`` describes the resource in documents. If a ``part`` of it is enough, the answer has
    only what the role may see (``Caller.coverage``).
    """

    action: Action
    resource: str
    patterns: Callable[[Get], list[Pattern]]
    part: bool = False


# The rights that a request needs, all of them. An empty row: every client may send it.
Row = tuple[Right, ...]


def topic(action: Action, name: str = "topic", optional: bool = False) -> Right:
    """Return the right to an action on the topic or message table that an argument names."""

    def patterns(get: Get) -> list[Pattern]:
        text = get(name)
        if text is None and optional:
            return []
        return [_one_topic(text, name)]

    return Right(action, f"`{name}`, if given" if optional else f"`{name}`", patterns)


def topics(action: Action, name: str) -> Right:
    """Return the right to an action on each topic of a list."""

    def patterns(get: Get) -> list[Pattern]:
        texts = get(name)
        if not isinstance(texts, list):
            raise _wrong(name)
        return [_one_topic(text, name) for text in texts]

    return Right(action, f"each of `{name}`", patterns)


def namespace(action: Action, name: str = "namespace", optional: bool = False) -> Right:
    """Return the right to an action on all topics of a namespace; on everything if not given."""

    def patterns(get: Get) -> list[Pattern]:
        text = get(name)
        if text is None and optional:
            return [ALL]
        return [Pattern(f"{NamespaceName.parse(text).full}/*")]

    return Right(action, f"`{name}`/*" + (", or `*`" if optional else ""), patterns)


def pattern(action: Action, name: str, optional: bool = False) -> Right:
    """Return the right to an action on what a pattern covers; on everything if not given."""

    def patterns(get: Get) -> list[Pattern]:
        text = get(name)
        if text is None and optional:
            return [ALL]
        if not isinstance(text, str):
            raise _wrong(name)
        return [Pattern.parse(text)]

    return Right(action, f"`{name}`" + (", or `*`" if optional else ""), patterns)


def in_policy(action: Action, field: str) -> Right:
    """Return the right to an action on the topic that a field of the argument ``policy`` names."""

    def patterns(get: Get) -> list[Pattern]:
        policy = get("policy")
        text = policy.get(field) if isinstance(policy, Mapping) else None
        return [_one_topic(text, field)] if text else []

    return Right(action, f"`{field}` of `policy`, if given", patterns)


def by_action(action: Action, redrives: bool) -> Right:
    """Return the right to an action on the topic of a bulk change.

    It is for redrives, or for all other actions.
    """

    def patterns(get: Get) -> list[Pattern]:
        fits = (get("action") == "redrive") is redrives
        return [_one_topic(get("topic"), "topic")] if fits else []

    when = "if `action` is `redrive`" if redrives else "unless `action` is `redrive`"
    return Right(action, f"`topic`, {when}", patterns)


def everything(action: Action) -> Right:
    """Return the right to an action on everything."""
    return Right(action, "`*`", lambda get: [ALL])


def part_of(right: Right) -> Right:
    """Return the right to an action on a part of a resource, for a listing that is filtered."""
    return right._replace(resource=f"a part of {right.resource}", part=True)


def _given_namespace(get: Get) -> list[Pattern]:
    text = get("namespace")
    return [] if text is None else [Pattern(f"{NamespaceName.parse(text).full}/*")]


# Without a namespace, the answer is about the namespaces of which the role sees everything.
_NAMESPACE_OR_SEEN: Final = (
    Right("peek", "`namespace`/*, if given", _given_namespace),
    Right("peek", "a part of `*`, otherwise", lambda get: [] if get("namespace") else [ALL], True),
)
_TABLES: Final = Right("peek", "`table://*`", lambda get: [ALL_TABLES])
# The request does not name this topic. The verb checks the right when it has found the schedule.
_SCHEDULED: Final = Right("produce", "the topic that `schedule` publishes to", lambda get: [])
# The copy of a dead letter goes there.
_DEAD_LETTERS: Final = in_policy("produce", "dead_letter_topic")


VERB_NEEDS: Final[dict[str, Row]] = {
    # Everyone may ask for a look at the outboxes: it only ends a wait of less than a second.
    "outboxes.poll": (),
    # Everyone may know what they may do.
    "access.own": (),
    "namespaces.list": (part_of(everything("peek")),),
    "namespaces.get": (namespace("peek"),),
    "namespaces.update": (namespace("admin"),),
    "namespaces.create": (namespace("admin"),),
    "namespaces.delete": (namespace("admin"),),
    "namespaces.enable_delayed_message": (namespace("admin"),),
    "namespaces.disable_delayed_message": (namespace("admin"),),
    "namespaces.forecast": _NAMESPACE_OR_SEEN,
    "topics.list": (part_of(namespace("peek", optional=True)),),
    "topics.get": (topic("peek"),),
    "topics.update": (topic("admin"),),
    "topics.stats": (topic("peek"),),
    "topics.create": (topic("admin"),),
    "topics.create_many": (topics("admin", "topics"),),
    "topics.delete": (topic("admin"),),
    "topics.peek": (topic("peek"),),
    "topics.forecast": (topic("peek"),),
    "messages.select": (topic("peek"),),
    "messages.show": (topic("peek"),),
    "subscriptions.list": (topic("peek"),),
    "subscriptions.overview": (part_of(namespace("peek", optional=True)),),
    "subscriptions.get": (topic("peek"),),
    "subscriptions.lateness": (
        topic("peek", optional=True),
        part_of(namespace("peek", optional=True)),
    ),
    "subscriptions.create": (topic("consume"), _DEAD_LETTERS),
    "subscriptions.update": (topic("admin"), _DEAD_LETTERS),
    "subscriptions.seek": (topic("admin"),),
    "subscriptions.delete": (topic("admin"),),
    "dlq.list": (topic("peek"), topic("peek", "dead_letter_topic", optional=True)),
    "dlq.find": (topic("peek"), topic("peek", "dead_letter_topic", optional=True)),
    "dlq.show": (topic("peek"), topic("peek", "dead_letter_topic", optional=True)),
    "dlq.count": (topic("peek"), topic("peek", "dead_letter_topic", optional=True)),
    "dlq.redrive": (topic("produce"), topic("cancel", "dead_letter_topic", optional=True)),
    "dlq.purge": (topic("cancel"), topic("cancel", "dead_letter_topic", optional=True)),
    "bulk.preview": (topic("peek"), topic("peek", "dead_letter_topic", optional=True)),
    "bulk.start": (
        by_action("cancel", redrives=False),
        by_action("produce", redrives=True),
        topic("cancel", "dead_letter_topic", optional=True),
    ),
    "bulk.list": (part_of(namespace("peek", optional=True)),),
    "bulk.show": (topic("peek"),),
    "bulk.stop": (topic("cancel"),),
    "push.create": (topic("admin"),),
    "push.update": (topic("admin"),),
    "push.rotate": (topic("admin"),),
    "push.delete": (topic("admin"),),
    "push.show": (topic("admin"),),
    "push.pause": (topic("admin"),),
    "push.resume": (topic("admin"),),
    "push.list": (part_of(namespace("admin", optional=True)),),
    "push.secrets": (part_of(namespace("admin", optional=True)),),
    "dispatch.pause": (topic("admin"),),
    "dispatch.resume": (topic("admin"),),
    "inbox.list": (everything("peek"),),
    "inbox.discard": (everything("admin"),),
    "jobs.list": (everything("peek"),),
    "schedules.list": (part_of(namespace("peek", optional=True)),),
    "schedules.get": (topic("peek", "schedule"),),
    "schedules.create": (topic("produce", "schedule"), topic("produce")),
    "schedules.update": (
        topic("admin", "schedule"),
        topic("produce", optional=True),
        _SCHEDULED,
    ),
    "schedules.run_now": (topic("admin", "schedule"), _SCHEDULED),
    "schedules.next": (topic("peek", "schedule"),),
    "schedules.pause": (topic("cancel", "schedule"),),
    "schedules.resume": (topic("cancel", "schedule"),),
    "schedules.delete": (topic("cancel", "schedule"),),
    "groups.list": (topic("peek"),),
    "groups.get": (topic("peek"),),
    "groups.close": (topic("produce"), topic("produce", "target")),
    "groups.delete": (topic("produce"),),
    "tables.list": (part_of(_TABLES),),
    "tables.ack": (topic("consume"),),
    "tables.poll": (topic("produce"),),
    "tokens.create": (everything("admin"),),
    "tokens.list": (everything("admin"),),
    "tokens.revoke": (everything("admin"),),
    "grants.add": (pattern("admin", "pattern"),),
    "grants.list": (part_of(pattern("admin", "within", optional=True)),),
    "grants.remove": (pattern("admin", "pattern"),),
    "broker.stats": (everything("peek"),),
    "broker.update": (everything("admin"),),
    "broker.findings": (everything("peek"),),
    "cluster.status": (everything("peek"),),
    "cluster.drain": (everything("admin"),),
    "cluster.undrain": (everything("admin"),),
    "cluster.move": (everything("admin"),),
    "cluster.bundles": (everything("admin"),),
    "audit.list": (everything("admin"),),
}

COMMAND_NEEDS: Final[dict[type[wire.Command], Row]] = {
    wire.OpenProducer: (topic("produce"),),
    wire.Subscribe: (topic("consume"),),
    wire.Cancel: (topic("cancel"),),
    wire.Reschedule: (topic("cancel"),),
    wire.Read: (topic("peek"),),
    wire.Find: (topic("peek"),),
    # The connection itself.
    wire.Hello: (),
    wire.Ping: (),
    wire.Pong: (),
    wire.Goodbye: (),
    # Every client may ask which broker it has to connect to.
    wire.Lookup: (),
    # Checked by its verb, in VERB_NEEDS.
    wire.Admin: (),
    # Checked when the producer was opened.
    wire.Publish: (),
    wire.CloseProducer: (),
    # Checked when the consumer was opened.
    wire.Flow: (),
    wire.Ack: (),
    wire.Nack: (),
    wire.Reject: (),
    wire.Extend: (),
    wire.Release: (),
    wire.Halt: (),
    wire.CloseConsumer: (),
}


def needs_of(command: wire.Command) -> Iterator[Need]:
    """Yield what a command needs. A verb that does not exist needs nothing.

    Raises:
      InvalidRequest: if the name of a resource is missing or not valid.
    """
    if isinstance(command, wire.Admin):
        yield from needs_of_verb(command.verb, command.arguments)
    else:
        yield from _needs(COMMAND_NEEDS[type(command)], lambda name: getattr(command, name))


def needs_of_verb(verb: str, arguments: Mapping[str, Any]) -> Iterator[Need]:
    """Yield what a verb of administration needs. One that does not exist needs nothing.

    Raises:
      InvalidRequest: if the name of a resource is missing or not valid.
    """
    try:
        yield from _needs(VERB_NEEDS.get(verb, ()), arguments.get)
    except InvalidRequest as error:
        raise InvalidRequest(f"{verb}: {error}") from None


def _needs(row: Row, get: Get) -> Iterator[Need]:
    for right in row:
        for found in right.patterns(get):
            yield Need(right.action, found, right.part)


def _one_topic(text: Any, name: str) -> Pattern:
    if not isinstance(text, str) or "*" in text:
        raise _wrong(name)
    return Pattern.parse(text)


def _wrong(name: str) -> InvalidRequest:
    return InvalidRequest(f"{name!r} does not name what the request is about")
