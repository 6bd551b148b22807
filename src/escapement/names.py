"""Names: tenant, namespace, topic, subscription, producer.

Every part of a name obeys one rule, so that it can stand in a path, a column, a
command line and a metric's label without quoting. A topic may be written in three
ways, which name the same thing:

    ====================================  ==========================
    written                               read as
    ====================================  ==========================
    ``persistent://shop/eu/orders``       ``shop/eu/orders``
    ``shop/eu/orders``                    ``shop/eu/orders``
    ``orders``                            ``public/default/orders``
    ====================================  ==========================

What was read is kept as a value that cannot be malformed: the rule is checked when
it is made, by whatever road. This module knows nothing of what the names name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from escapement.errors import InvalidRequest

# 200 bytes: three parts and their slashes stay below 767, what an InnoDB index key
# takes in every row format.
MAX_NAME_LENGTH: Final = 200
DEFAULT_TENANT: Final = "public"
DEFAULT_NAMESPACE: Final = "default"
# How the names begin that producers get who are given none.
_ANONYMOUS: Final = "anonymous-"

_SCHEME: Final = "persistent://"
_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME_LENGTH}}}")
# What we quote of a bad name: enough to recognise it, not enough to flood a log.
_QUOTED_LENGTH: Final = 60


def check_name(kind: str, text: str) -> str:
    """``text`` itself, if it may be the name of a ``kind`` ("subscription").

    Raises:
      InvalidRequest: says which name, and what is allowed.
    """
    if not isinstance(text, str) or _NAME.fullmatch(text) is None or text in (".", ".."):
        raise InvalidRequest(
            f"{_quote(text)} cannot be a {kind} name: 1 to {MAX_NAME_LENGTH} characters of "
            "A-Z a-z 0-9 . _ - are allowed, but not '.' or '..' alone"
        )
    return text


def anonymous_name() -> str:
    """A name for who is not to be found again once it is gone."""
    return _ANONYMOUS + uuid4().hex


def is_anonymous(name: str) -> bool:
    """Whether this is a name that nobody chose."""
    return name.startswith(_ANONYMOUS)


@dataclass(frozen=True, slots=True, order=True)
class NamespaceName:
    """``tenant/namespace``."""

    tenant: str
    namespace: str

    def __post_init__(self) -> None:
        check_name("tenant", self.tenant)
        check_name("namespace", self.namespace)

    @classmethod
    def parse(cls, text: str) -> NamespaceName:
        """Read ``tenant/namespace``.

        Raises:
          InvalidRequest: if it is anything else.
        """
        _check_text("namespace", text)
        parts = text.split("/")
        if len(parts) != 2:
            raise InvalidRequest(f"{_quote(text)} is not a namespace: write it as tenant/namespace")
        return cls(*parts)

    @property
    def full(self) -> str:
        """``tenant/namespace``."""
        return f"{self.tenant}/{self.namespace}"

    def __str__(self) -> str:
        return self.full


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """``tenant/namespace/name``."""

    tenant: str
    namespace: str
    name: str

    def __post_init__(self) -> None:
        check_name("tenant", self.tenant)
        check_name("namespace", self.namespace)
        check_name("topic", self.name)

    @classmethod
    def parse(cls, text: str, kind: str = "topic") -> TopicName:
        """Read any of the three ways to write a topic, or a ``kind`` that is named as topics are.

        Raises:
          InvalidRequest: if it is none of them, or a part breaks the rule for names.
        """
        _check_text(kind, text)
        scheme, separator, rest = text.partition("://")
        if separator and scheme + separator != _SCHEME:
            raise InvalidRequest(
                f"{_quote(text)} is not a {kind}: the only scheme is {_SCHEME}, "
                "and it may be left out"
            )
        parts = (rest if separator else text).split("/")
        if len(parts) == 1 and not separator:
            parts = [DEFAULT_TENANT, DEFAULT_NAMESPACE, *parts]
        if len(parts) != 3:
            raise InvalidRequest(
                f"{_quote(text)} is not a {kind}: write it as {_SCHEME}tenant/namespace/name, "
                f"tenant/namespace/name, or name (in {DEFAULT_TENANT}/{DEFAULT_NAMESPACE})"
            )
        check_name(kind, parts[2])
        return cls(*parts)

    @property
    def full(self) -> str:
        """``tenant/namespace/name``: the one form that is stored and compared."""
        return f"{self.tenant}/{self.namespace}/{self.name}"

    @property
    def in_namespace(self) -> NamespaceName:
        """The namespace it stands in."""
        return NamespaceName(self.tenant, self.namespace)

    @property
    def namespace_full(self) -> str:
        """``tenant/namespace``."""
        return f"{self.tenant}/{self.namespace}"

    def __str__(self) -> str:
        return self.full


def _check_text(kind: str, text: Any) -> None:
    if not isinstance(text, str):
        raise InvalidRequest(f"{_quote(text)} is not a {kind}: it is named by text")


def _quote(named: Any) -> str:
    text = named if isinstance(named, str) else repr(named)
    text = text if len(text) <= _QUOTED_LENGTH else text[: _QUOTED_LENGTH - 1] + "…"
    return repr(text) if isinstance(named, str) else text
