"""The part of the messages that a query needs, as its WHERE clause tells.

A query of the plain form ``SELECT … FROM messages WHERE a AND b …`` needs only the messages for
which each condition holds. Conditions that compare a topic, an offset or a time with a constant
narrow the read. All other text is ignored, and a query of any other form reads all messages: SQLite
evaluates the whole WHERE clause on the rows that it gets. So this module may miss a
condition, but it must never find one that does not hold for all rows of the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from escapement.pipeline.selection import END, Selection

_TOKEN: Final = re.compile(
    r"""(?P<skip>\s+|--[^\n]*|/\*.*?(?:\*/|$))
    |(?P<text>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\])
    |(?P<number>[0-9]+(?![0-9A-Za-z_.]))
    |(?P<word>[A-Za-z_\u0080-\U0010ffff][\w$]*)
    |(?P<sign><=|>=|<>|!=|==|\|\||.)""",
    re.VERBOSE | re.DOTALL,
)
# A query with one of these words may have a result with rows for which a condition does not hold,
# or its conditions may belong to something else.
_NOT_PLAIN: Final = frozenset({"WITH", "UNION", "INTERSECT", "EXCEPT", "VALUES", "CASE"})
# Words that end a WHERE clause.
_AFTER_WHERE: Final = frozenset({"GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT"})
_OPERATORS: Final = frozenset({"=", "==", "<", "<=", ">", ">="})
# A time whose order as text is that of the column, and which is not longer than its values.
_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}( [0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{3})?)?)?"
)
_EVERYTHING: Final = Selection()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_MS: Final = 253_402_300_800_000


@dataclass(frozen=True, slots=True)
class Token:
    """A word, sign or constant of a query. ``text`` is the value of a string constant."""

    kind: str
    text: str

    @property
    def word(self) -> str:
        """The word in upper case; "" if the token is not a word."""
        return self.text.upper() if self.kind == "word" else ""


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The messages that a query needs: topics, or None for all of them, and a selection in each."""

    topics: frozenset[str] | None = None
    selection: Selection = _EVERYTHING


def joins_by_name(sql: str) -> bool:
    """Return whether the query may join tables by the names of their columns."""
    return not {"USING", "NATURAL"}.isdisjoint(token.word for token in _tokens(sql))


def narrowed(sql: str) -> Narrowing:
    """Return a superset of the messages that the query needs."""
    found = Narrowing()
    for condition in _conditions(_tokens(sql)):
        found = _with(found, condition)
    return found


def _tokens(sql: str) -> list[Token]:
    tokens = []
    for match in _TOKEN.finditer(sql):
        kind, text = match.lastgroup or "", match[0]
        if kind == "text":
            text = text[1:-1].replace("''", "'")
        if kind != "skip":
            tokens.append(Token(kind, text))
    return tokens


def _conditions(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Yield the conditions that hold for all rows that the query reads.

    Names have no alias. There are none if the query is not of the plain form.
    """
    words = [token.word for token in tokens]
    if words.count("SELECT") != 1 or words[0] != "SELECT" or not _NOT_PLAIN.isdisjoint(words):
        return
    if words.count("FROM") != 1 or words.count("WHERE") != 1:
        return
    at, where = words.index("FROM"), words.index("WHERE")
    table = [word for word in words[at + 1 : where] if word != "AS"]
    if table[:1] != ["MESSAGES"] or len(table) > 2 or not all(table):
        return
    depth = 0
    between = False
    conditions: list[list[Token]] = [[]]
    for token in tokens[where + 1 :]:
        depth += (token.text == "(") - (token.text == ")") if token.kind == "sign" else 0
        if depth == 0 and (token.word in _AFTER_WHERE or token == Token("sign", ";")):
            break
        if depth == 0 and token.word == "OR":
            return
        if depth == 0 and token.word == "AND" and not between:
            conditions.append([])
            continue
        if depth == 0 and token.word in ("AND", "BETWEEN"):
            between = token.word == "BETWEEN"
        conditions[-1].append(token)
    for condition in conditions:
        if len(condition) > 2 and condition[0].word == table[-1] and condition[1].text == ".":
            del condition[:2]
        yield condition


def _with(found: Narrowing, condition: Sequence[Token]) -> Narrowing:
    """Return the messages in ``found`` that may meet the condition."""
    column = condition[0].word.lower() if condition else ""
    if column == "topic":
        topics = _topics(condition[1:])
        if topics is None:
            return found
        return Narrowing(topics if found.topics is None else found.topics & topics, found.selection)
    if len(condition) != 3 or condition[1].text not in _OPERATORS:
        return found
    operator = condition[1].text.replace("==", "=")
    column, value = _value(column, condition[2])
    if value is None:
        return found
    return Narrowing(found.topics, found.selection.narrowed(column, operator, value))


def _topics(rest: Sequence[Token]) -> frozenset[str] | None:
    """Return the topics of ``= 'a'`` and ``IN ('a', 'b')``; None for any other condition."""
    kinds = [token.kind for token in rest]
    if kinds == ["sign", "text"] and rest[0].text in ("=", "=="):
        return frozenset({rest[1].text})
    listed = rest[2:-1]
    if len(rest) < 4 or rest[0].word != "IN" or (rest[1].text, rest[-1].text) != ("(", ")"):
        return None
    if any(token.kind != "text" for token in listed[::2]) or len(listed) % 2 == 0:
        return None
    if any(token != Token("sign", ",") for token in listed[1::2]):
        return None
    return frozenset(token.text for token in listed[::2])


def _value(column: str, constant: Token) -> tuple[str, Any]:
    """Return the column and the value for ``Selection.narrowed``; None if there is none."""
    if column == "offset" and constant.kind == "number":
        number = int(constant.text)
        return column, number if number < END else None
    if column in ("deliver_at_ms", "published_at_ms") and constant.kind == "number":
        number = int(constant.text)
        at = _EPOCH + timedelta(milliseconds=number) if number < _MOST_MS else None
        return column.removesuffix("_ms"), at
    if column in ("deliver_at", "published_at") and constant.kind == "text":
        return column, _moment(constant.text)
    return column, None


def _moment(text: str) -> datetime | None:
    if not _TIME.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None
