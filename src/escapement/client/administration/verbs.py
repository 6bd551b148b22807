"""The brokers of which a verb is asked, if the database has several bundles of topics.

A *verb* is the name of an administrative request, such as ``topics.get``. A *bundle* is a set of
topics with one broker. Most verbs are about one topic, and go to the broker of its bundle. The
others are in the tables here and in ``protocol/bundle_verbs.py``. With one bundle, all verbs go to
its broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from escapement.client.connection.lines import Lines
from escapement.client.connection.retried_request import (
    ask_again,
    ask_bundle,
    ask_onward,
    may_ask_twice,
    result_of,
)
from escapement.errors import NotFound, WrongBundle
from escapement.protocol import commands as wire
from escapement.protocol.bundle_verbs import SOUGHT, Merge, contents, merge_of

# The bundle whose broker carries out the verbs about what all bundles share.
_SHARED: Final = 0
# The first words of these verbs, except those in ``MERGED``.
SHARED: Final = ("namespaces", "tokens", "grants", "tables", "outboxes", "jobs")
# The first words of the verbs that any broker carries out for the whole database, and the verb that
# a node answers about itself.
ANYWHERE: Final = ("access", "cluster", "audit", "broker.findings")
# Verbs that name their topic in another argument than ``topic``.
ELSEWHERE: Final = {"inbox.discard": "target"}
# The verb that deletes what a namespace has in all bundles.
DELETION: Final = "namespaces.delete"
# A lookup needs a topic, which need not exist.
_ANY_TOPIC: Final = "any"
# The first words of verbs about the messages of a topic, or the dead letters that came from it. The
# broker of the topic knows which dead-letter topic has these, and names its bundle.
FOLLOWED: Final = ("dlq", "bulk")


class _Request(NamedTuple):
    """A verb with its arguments, and the reason for the audit log, "" if it has none."""

    verb: str
    arguments: Mapping[str, Any]
    reason: str

    def command(self, request_id: int) -> wire.Admin:
        return wire.Admin(request_id, self.verb, dict(self.arguments), self.reason)

    def also(self, **arguments: Any) -> _Request:
        """Return the request with more or other arguments."""
        return self._replace(arguments={**self.arguments, **arguments})


async def ask_verb(lines: Lines, reason: str, verb: str, /, **arguments: Any) -> Any:
    """Send a verb to the broker or brokers that it is about, and return the answer.

    If the connection is lost, the request is sent again only if the verb is idempotent.

    Args:
      reason: why the request is made, for the audit log; "" if it has no reason of its own.

    Raises:
      Disconnected: if no answer arrives in time, or the connection is lost during a request
        that is not sent again.
      EscapementError: if a broker refuses.
    """
    request = _Request(verb, arguments, reason)
    merge = merge_of(str(verb), arguments)
    if merge is not None or str(verb) in {*SOUGHT, DELETION}:
        await _learn_count(lines)
    if lines.count == 1:
        try:
            return await _of_bundle(lines, _SHARED, request)
        except WrongBundle:
            if lines.count == 1:  # otherwise the broker has told that there are several bundles now
                raise
    if merge is not None:
        return await _of_all(lines, request, merge)
    if verb in SOUGHT:
        return await _sought(lines, request)
    if verb == DELETION and (arguments.get("force") or arguments.get("dry_run")):
        return await _delete_namespace(lines, request)
    if verb == "topics.create_many":
        return await _create_many(lines, request)
    kind = str(verb).partition(".")[0]
    if kind in ANYWHERE or verb in ANYWHERE:
        return await _of_bundle(lines, next(_connected(lines), _SHARED), request)
    topic = arguments.get(ELSEWHERE.get(verb, "topic"))
    if kind in SHARED or not isinstance(topic, str):
        return await _of_bundle(lines, _SHARED, request)
    if kind in FOLLOWED:
        lies_in = arguments.get("dead_letter_topic")
        (bundle,) = await lines.bundles_of([lies_in if isinstance(lies_in, str) else topic])
        return result_of(await ask_onward(lines, bundle, request.command, may_ask_twice(verb)))
    return result_of(await ask_again(lines, topic, request.command, may_ask_twice(verb)))


async def _learn_count(lines: Lines) -> None:
    """Ask for the number of bundles: some may have been added, and no other answer tells it."""
    make = partial(wire.Lookup, topic=_ANY_TOPIC)
    if lines.count == 1:
        await ask_bundle(lines, _SHARED, make)
    else:
        await lines.look_up([_ANY_TOPIC])


async def _of_bundle(lines: Lines, bundle: int, request: _Request) -> Any:
    twice = may_ask_twice(request.verb)
    return result_of(await ask_bundle(lines, bundle, request.command, twice))


async def _of_all(lines: Lines, request: _Request, merge: Merge) -> Any:
    """Ask every broker, one after the other, and merge the answers.

    A broker may not know a namespace in which it has no topics.
    """
    answers, refusal = [], None
    for bundle in range(lines.count):
        try:
            answers.append(await _of_bundle(lines, bundle, request))
        except NotFound as error:
            refusal = error
    if not answers and refusal is not None:
        raise refusal
    return merge(answers)


async def _sought(lines: Lines, request: _Request) -> Any:
    """Ask the brokers one after the other until one knows the name; open connections first."""
    refusal: NotFound | None = None
    for bundle in dict.fromkeys([*_connected(lines), *range(lines.count)]):
        try:
            return await _of_bundle(lines, bundle, request)
        except NotFound as error:
            refusal = error
    assert refusal is not None
    raise refusal


def _connected(lines: Lines) -> Iterator[int]:
    """Yield the bundles to whose brokers there are connections."""
    for line in lines:
        if line.link is not None:
            assert line.bundle is not None
            yield line.bundle


async def _create_many(lines: Lines, request: _Request) -> Any:
    """Create the topics of each bundle at its broker. If one refuses, others may have created."""
    topics = request.arguments.get("topics")
    if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
        return await _of_bundle(lines, _SHARED, request)
    of_bundle: dict[int, list[str]] = {}
    for topic, bundle in zip(topics, await lines.bundles_of(topics), strict=True):
        of_bundle.setdefault(bundle, []).append(topic)
    if not of_bundle:
        return await _of_bundle(lines, _SHARED, request)
    answers = [
        await _of_bundle(lines, bundle, request.also(topics=some))
        for bundle, some in sorted(of_bundle.items())
    ]
    return {name: sum(answer[name] for answer in answers) for name in answers[0]}


async def _delete_namespace(lines: Lines, request: _Request) -> Any:
    """Count what a namespace has in all bundles, and delete it unless this is a dry run."""
    counts = await _of_all(lines, request.also(dry_run=True), contents)
    if request.arguments.get("dry_run"):
        return counts
    answer = await _of_bundle(lines, _SHARED, request)
    return {name: counts.get(name, value) for name, value in answer.items()}
