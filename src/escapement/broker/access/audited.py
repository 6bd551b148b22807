"""Which requests the audit log records, and how it describes them. Pure.

Every verb of administration is recorded, unless it is in one of the sets here. So a new verb is
recorded from the beginning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from escapement.broker.access.needs import VERB_NEEDS
from escapement.errors import InvalidRequest
from escapement.names import full_name
from escapement.protocol import commands as wire
from escapement.protocol.limits import MAX_REASON_CHARS

# Verbs that need no other right than to peek change nothing. Others need more, or tell about
# processes, also during an outage.
READS: Final = frozenset(
    verb
    for verb, rights in VERB_NEEDS.items()
    if rights and all(right.action == "peek" for right in rights)
) - {"broker.findings", "broker.stats", "cluster.status"} | {
    "access.own", "grants.list", "push.list", "push.secrets", "push.show", "tokens.list",
}  # fmt: skip

# Verbs that change nothing and are never recorded.
UNRECORDED: Final = READS | {
    "broker.findings", "broker.stats", "cluster.status", "audit.list", "outboxes.poll",
    "tables.poll",
}  # fmt: skip
# Requests that applications make while they process messages. They are recorded only if a person
# makes them, or if they have a reason of their own.
OF_APPLICATIONS: Final = frozenset({"tables.ack", "groups.close"})
# The commands that are recorded if a person sends them, and the names that they get.
COMMANDS: Final[dict[type[wire.Command], str]] = {
    wire.Cancel: "messages.cancel",
    wire.Reschedule: "messages.reschedule",
    wire.OpenProducer: "messages.produce",
}
# The names of the clients through which people and agents work.
PEOPLE: Final = frozenset({"cli", "console", "http", "mcp"})
# Those that open a producer for each action. An agent shares producers between its calls.
PUBLISHING_PEOPLE: Final = frozenset({"cli", "console"})

# The arguments that name the object of an action; the first that is given counts.
_OBJECTS: Final = (
    "schedule", "topic", "namespace", "target", "pattern", "role", "id", "node", "bundle",
)  # fmt: skip
# Those that are names of topics, which the audit log has in full.
_TOPICS: Final = frozenset({"topic", "schedule", "target"})
# Arguments whose values are left out: the content of messages, and secrets.
_CONTENT: Final = frozenset({"payload", "digest"})
_SECRET: Final = re.compile("secret|password|passwd|credential|authorization|token", re.IGNORECASE)
_USER_IN_URL: Final = re.compile(r"://[^/\s]*@")
_LEFT_OUT: Final = "***"
# The most bytes of the arguments of one action, as JSON.
MAX_ARGUMENTS_BYTES: Final = 4096
# The most characters of a text, and items of a list or a map, if the arguments are longer.
_SHORT_TEXT: Final = 200
_SHORT_LIST: Final = 10


class Origin(NamedTuple):
    """Where a request comes from: the client's name and address, and the reason that it gives.

    Attributes:
      is_explained: whether the reason is of this request, and not of all requests of the client.
    """

    client: str = ""
    peer: str = ""
    reason: str = ""
    is_explained: bool = False

    def because(self, reason: str) -> Origin:
        """Return the origin of a request with a reason of its own, "" if it has none."""
        return self._replace(reason=reason, is_explained=True) if reason else self

    @property
    def is_person(self) -> bool:
        """Whether a person makes the request, as far as the broker can tell."""
        return self.client in PEOPLE or self.is_explained


def reason_in(value: Any) -> str:
    """Return the reason that a client gives, cut to ``MAX_REASON_CHARS``; "" if it gives none."""
    return value[:MAX_REASON_CHARS] if isinstance(value, str) else ""


# The origin of a caller that no request comes from.
NOWHERE: Final = Origin()


class Request(NamedTuple):
    """A request that is to be recorded."""

    verb: str
    object: str
    arguments: str  # JSON
    reason: str = ""


def recorded_verb(verb: str, arguments: Mapping[str, Any], origin: Origin) -> Request | None:
    """Return what to record of an administrative request, or None."""
    if (
        verb in UNRECORDED
        or verb not in VERB_NEEDS
        or (verb in OF_APPLICATIONS and not origin.is_person)
        or arguments.get("dry_run") is True
    ):
        return None
    given = {name: value for name, value in arguments.items() if value is not None}
    reason = given.get("reason")  # of a bulk change
    if not isinstance(reason, str) or origin.reason:
        reason = origin.reason
    return Request(verb, object_of(given), described(given), reason)


def recorded_command(command: wire.Command, origin: Origin) -> Request | None:
    """Return what to record of a command to cancel, reschedule or produce messages, or None.

    A producer is recorded when it is opened, so its messages cost nothing more.
    """
    verb = COMMANDS.get(type(command))
    if verb is None:
        return None
    assert isinstance(command, wire.Cancel | wire.Reschedule | wire.OpenProducer)
    origin = origin.because(command.reason)
    if isinstance(command, wire.OpenProducer):
        is_recorded = origin.client in PUBLISHING_PEOPLE or origin.is_explained
        if not is_recorded or command.epoch >= 0:  # it reconnects, and has a row
            return None
        given: dict[str, Any] = {"producer": command.name}
    elif origin.is_person:
        given = _amendment(command)
    else:
        return None
    return Request(verb, full_or_same(command.topic), described(given), origin.reason)


def _amendment(command: wire.Cancel | wire.Reschedule) -> dict[str, Any]:
    """Return the arguments of a command that changes messages."""
    offsets = command.offsets
    given = {"messages": len(offsets), "offsets": [int(one) for one in offsets[:_SHORT_LIST]]}
    if isinstance(command, wire.Reschedule):
        for name in ("delay_ms", "at_ms"):
            if (value := getattr(command, name)) >= 0:
                given[name] = value
        given["spread_ms"] = command.spread_ms
    return given


def object_of(given: Mapping[str, Any]) -> str:
    """Return what an action is about: the full name of a topic, or another name or id."""
    for name in _OBJECTS:
        if name in given:
            text = str(given[name])
            return full_or_same(text) if name in _TOPICS else text
    return ""


def full_or_same(text: str) -> str:
    """Return the full name of a topic, or the same text if it is not the name of a topic."""
    try:
        return full_name(text)
    except InvalidRequest:
        return text


def described(given: Mapping[str, Any]) -> str:
    """Return arguments as JSON of at most ``MAX_ARGUMENTS_BYTES``, without secrets and content."""
    text = json.dumps(_plain(given), ensure_ascii=False)
    if len(text.encode("utf-8", "replace")) > MAX_ARGUMENTS_BYTES:
        text = json.dumps(_short(_plain(given)), ensure_ascii=False)
    if (size := len(text.encode("utf-8", "replace"))) > MAX_ARGUMENTS_BYTES:
        text = json.dumps({"left_out_bytes": size})
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            str(name): _LEFT_OUT if name in _CONTENT or _SECRET.search(str(name)) else _plain(one)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, str) and "://" in value:
        return _USER_IN_URL.sub(f"://{_LEFT_OUT}@", value)
    return value


def _short(value: Any) -> Any:
    """Return a value with shorter texts, lists and maps. It says how much is left out."""
    if isinstance(value, str) and len(value) > _SHORT_TEXT:
        return f"{value[:_SHORT_TEXT]}… ({len(value)} characters)"
    if isinstance(value, list) and len(value) > _SHORT_LIST:
        return [*map(_short, value[:_SHORT_LIST]), f"… ({len(value)} items)"]
    if isinstance(value, list):
        return [_short(one) for one in value]
    if isinstance(value, dict):
        some = dict(list(value.items())[:_SHORT_LIST])
        left = {"…": f"{len(value)} items"} if len(some) < len(value) else {}
        return {name: _short(one) for name, one in some.items()} | left
    return value
