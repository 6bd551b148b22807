"""The directives in the COMMENT of a message table.

A COMMENT is a list of items, separated by commas. One item is the *marker*, which makes the table a
message table and chooses the *spelling* of the directives:

    vitess_message,vt_ack_wait=30,vt_purge_after=86400,vt_batch_size=10,vt_cache_size=10000,…
    escapement_message,ack_wait=30,purge_after=86400,batch_size=10,cache_size=10000,…

============================  ========  ====================================================
directive                     value     meaning
============================  ========  ====================================================
``ack_wait``                  seconds   resend a message not acknowledged within this time
``purge_after``               seconds   delete acknowledged messages of this age
``batch_size``                number    send at most this many messages at once
``cache_size``                number    keep at most this many messages in memory
``poller_interval``           seconds   look for due messages this often
``min_backoff`` (optional)    seconds   shortest wait between retries; without it, ``ack_wait``
``max_backoff`` (optional)    seconds   longest wait between retries; without it, no bound
``message_cols`` (optional)   columns   send these columns, such as ``id|message``; without it, all
``key_column`` (optional)     column    divide messages by it among key ranges; without it, ``id``
============================  ========  ====================================================

Seconds may have a fraction. A fraction of a millisecond is rounded up. White space around items,
names and values has no meaning. Unknown items are kept, so that they can be reported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from typing import Final, Literal, NamedTuple

from escapement.errors import TableRejected

Spelling = Literal["escapement", "vitess"]

# The marker of each spelling, and the prefix of its directives.
MARKERS: Final[Mapping[Spelling, str]] = {
    "escapement": "escapement_message",
    "vitess": "vitess_message",
}
_PREFIXES: Final[Mapping[Spelling, str]] = {"escapement": "", "vitess": "vt_"}
# The begin of an item that only message tables have.
SIGNS: Final = tuple(f"{prefix}ack_wait=" for prefix in _PREFIXES.values())

# The longest time in a directive. Times of messages are nanoseconds in 64 bits, which end in the
# year 2262, and the longest time from now must be before that.
MAX_DIRECTIVE_MS: Final = 100 * 366 * 86_400_000
# The largest count in a directive. It fits in 32 bits.
MAX_COUNT: Final = 2**31 - 1
# The longest COMMENT of a table that MySQL and MariaDB accept, in characters.
MAX_COMMENT: Final = 2048

# Numbers are short, because int() and Decimal() are slow for very long ones.
_SECONDS: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")
_COUNT: Final = re.compile(r"[0-9]{1,12}")
# How many characters of a wrong value an error quotes.
_QUOTED_LENGTH: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Directives:
    """How the messages of a table are sent, resent and purged."""

    ack_wait_ms: int
    min_backoff_ms: int
    max_backoff_ms: int | None  # None: no bound
    purge_after_ms: int
    batch_size: int
    cache_size: int
    poll_interval_ms: int
    message_cols: tuple[str, ...] = ()  # the columns to send; empty: all but those of the broker
    key_column: str | None = None  # None: ``id``


class TableComment(NamedTuple):
    """The content of a message table's COMMENT."""

    spelling: Spelling
    directives: Directives
    unknown: tuple[str, ...]  # the items that are not directives, in their order


class _Rule(NamedTuple):
    """A directive: its field in ``Directives``, and its valid values."""

    field: str
    usual: str  # a good value, for error messages; of optional directives too
    least: int = 1  # in the unit of the field
    optional: bool = False

    @property
    def is_time(self) -> bool:
        return self.field.endswith("_ms")


# The directives without the prefix of their spelling.
_RULES: Final[Mapping[str, _Rule]] = {
    "min_backoff": _Rule("min_backoff_ms", "30", optional=True),
    "max_backoff": _Rule("max_backoff_ms", "3600", optional=True),
    "ack_wait": _Rule("ack_wait_ms", "30"),
    "purge_after": _Rule("purge_after_ms", "86400", least=0),
    "batch_size": _Rule("batch_size", "10"),
    "cache_size": _Rule("cache_size", "10000"),
    "poller_interval": _Rule("poll_interval_ms", "30"),
}
# The directives whose values are names of columns.
_MESSAGE_COLS: Final = "message_cols"
_KEY_COLUMN: Final = "key_column"


def is_message_table(comment: str) -> bool:
    """Return whether a table with this COMMENT is meant to be a message table.

    A table with the first directive of either spelling is, too: its marker may be misspelt.
    """
    return any(item in MARKERS.values() or item.startswith(SIGNS) for item in _items(comment))


def parse_comment(comment: str, table: str) -> TableComment:
    """Parse the COMMENT of the message table ``table``.

    Raises:
      TableRejected: if the marker or a directive is missing, repeated, or has a bad value. The
        message names the table and the directive, and has a good value.
    """
    items = _items(comment)
    spelling = _spelling(items, table)
    written: dict[str, str | None] = {}
    unknown: list[str] = []
    for item in items:
        name, equals, value = (part.strip() for part in item.partition("="))
        directive = name.removeprefix(_PREFIXES[spelling])
        if item == MARKERS[spelling]:
            continue
        is_known = directive in _RULES or directive in (_MESSAGE_COLS, _KEY_COLUMN)
        if not is_known or name != _PREFIXES[spelling] + directive:
            unknown.append(item)
            continue
        if directive in written:
            raise TableRejected(
                f"Table {table} has the directive {name} twice. Keep one of them in its COMMENT."
            )
        written[directive] = value if equals else None
    _check_complete(written, unknown, spelling, table)
    columns = _columns(written.pop(_MESSAGE_COLS, ""), _MESSAGE_COLS, spelling, table)
    keys = _columns(written.pop(_KEY_COLUMN, ""), _KEY_COLUMN, spelling, table)
    values = {
        _RULES[directive].field: _value(directive, text, spelling, table)
        for directive, text in written.items()
    }
    directives = replace(
        _directives(values, spelling, table),
        message_cols=columns,
        key_column=keys[0] if keys else None,
    )
    return TableComment(spelling, directives, tuple(unknown))


def write_comment(directives: Directives, spelling: Spelling = "escapement") -> str:
    """Return the COMMENT that ``parse_comment`` reads as these directives."""
    items = [MARKERS[spelling]]
    for directive, rule in _RULES.items():
        value = getattr(directives, rule.field)
        # The default of min_backoff follows a later change of ack_wait, so it is not written.
        follows = directive == "min_backoff" and value == directives.ack_wait_ms
        if value is not None and not follows:
            text = _seconds_text(value) if rule.is_time else str(value)
            items.append(f"{_PREFIXES[spelling]}{directive}={text}")
    if directives.message_cols:
        items.append(f"{_PREFIXES[spelling]}{_MESSAGE_COLS}={'|'.join(directives.message_cols)}")
    if directives.key_column is not None:
        items.append(f"{_PREFIXES[spelling]}{_KEY_COLUMN}={directives.key_column}")
    return ",".join(items)


def check_directives(directives: Directives, table: str) -> None:
    """Check that ``parse_comment`` would accept the COMMENT of these directives.

    Raises:
      TableRejected: if a value is out of bounds.
    """
    parse_comment(write_comment(directives), table)


def _items(comment: str) -> list[str]:
    return [item for part in comment.split(",") if (item := part.strip())]


def _spelling(items: list[str], table: str) -> Spelling:
    found = [spelling for spelling, marker in MARKERS.items() for i in items if i == marker]
    if not found:
        instead = f" instead of {_quoted(items[0])}" if items else ""
        raise TableRejected(
            f"Table {table} is not a message table. Begin its COMMENT with"
            f" {MARKERS['escapement']}{instead}."
        )
    if len(found) > 1:
        markers = " and ".join(MARKERS[spelling] for spelling in found)
        raise TableRejected(
            f"Table {table} has the markers {markers} in its COMMENT. Keep one of them."
        )
    return found[0]


def _check_complete(
    written: Mapping[str, object], unknown: Sequence[str], spelling: Spelling, table: str
) -> None:
    prefix = _PREFIXES[spelling]
    missing = [
        directive
        for directive, rule in _RULES.items()
        if not rule.optional and directive not in written
    ]
    if missing:
        noun = "directive" if len(missing) == 1 else "directives"
        names = ", ".join(prefix + directive for directive in missing)
        usual = ",".join(f"{prefix}{name}={_RULES[name].usual}" for name in missing)
        # An unknown item is probably a misspelt directive.
        but = f", but it has {', '.join(map(_quoted, unknown))}" if unknown else ""
        raise TableRejected(
            f"Table {table} has no {noun} {names}{but}. Add {usual} to its COMMENT."
        )


def _columns(text: str | None, directive: str, spelling: Spelling, table: str) -> tuple[str, ...]:
    """Return the names of columns in the value of a directive; "" stands for its absence."""
    if text == "":
        return ()
    names = tuple(name.strip() for name in (text or "").split("|"))
    most = 1 if directive == _KEY_COLUMN else MAX_COUNT
    if "" not in names and len(names) <= most and len(set(names)) == len(names):
        return names
    name = _PREFIXES[spelling] + directive
    usual = "tenant_id" if directive == _KEY_COLUMN else "id|message"
    raise TableRejected(
        f"Directive {name} of table {table} has the value {_quoted(text or '')}. Write"
        f" {'one name of a column' if most == 1 else 'names of columns, each once'}, such as"
        f" {name}={usual}."
    )


def _value(directive: str, text: str | None, spelling: Spelling, table: str) -> int:
    """Return the value of a directive in the unit of its field."""
    rule = _RULES[directive]
    pattern = _SECONDS if rule.is_time else _COUNT
    value = -1
    if text is not None and pattern.fullmatch(text):
        value = _whole_ms(text) if rule.is_time else int(text)
    most = MAX_DIRECTIVE_MS if rule.is_time else MAX_COUNT
    if rule.least <= value <= most:
        return value
    name = _PREFIXES[spelling] + directive
    said = "no value" if text is None else f"the value {_quoted(text)}"
    allowed = _allowed(rule, most)
    raise TableRejected(
        f"Directive {name} of table {table} has {said}. Write {allowed}, such as"
        f" {name}={rule.usual}."
    )


def _allowed(rule: _Rule, most: int) -> str:
    if rule.is_time:
        least = "more than 0 and" if rule.least else "0 to"
        bound = "at most " if rule.least else ""
        return f"seconds, {least} {bound}{most // 1000}"
    return f"a whole number from {rule.least} to {most}"


def _directives(values: Mapping[str, int], spelling: Spelling, table: str) -> Directives:
    min_backoff_ms = values.get("min_backoff_ms", values["ack_wait_ms"])
    max_backoff_ms = values.get("max_backoff_ms")
    if max_backoff_ms is not None and max_backoff_ms < min_backoff_ms:
        prefix = _PREFIXES[spelling]
        least, least_s = f"{prefix}min_backoff", _seconds_text(min_backoff_ms)
        if "min_backoff_ms" not in values:
            least = f"{prefix}ack_wait, which is the default of {least},"
        raise TableRejected(
            f"Directive {prefix}max_backoff={_seconds_text(max_backoff_ms)} of table {table} is"
            f" less than {least} of {least_s} seconds. Write {prefix}max_backoff={least_s} or more,"
            " or leave it out for no bound."
        )
    return Directives(
        ack_wait_ms=values["ack_wait_ms"],
        min_backoff_ms=min_backoff_ms,
        max_backoff_ms=max_backoff_ms,
        purge_after_ms=values["purge_after_ms"],
        batch_size=values["batch_size"],
        cache_size=values["cache_size"],
        poll_interval_ms=values["poll_interval_ms"],
    )


def _whole_ms(seconds: str) -> int:
    return int((Decimal(seconds) * 1000).to_integral_value(ROUND_CEILING))


def _seconds_text(duration_ms: int) -> str:
    seconds, rest_ms = divmod(duration_ms, 1000)
    return f"{seconds}.{rest_ms:03}".rstrip("0") if rest_ms else str(seconds)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTED_LENGTH else text[: _QUOTED_LENGTH - 1] + "…")
