"""The names of tenants, namespaces, topics, subscriptions and producers.

Every part of a name follows one rule, so that it needs no quoting in a path, a column, a
command line or the label of a metric. A topic name may be written in three ways:

    ====================================  ==========================
    written                               read as
    ====================================  ==========================
    ``persistent://shop/eu/orders``       ``shop/eu/orders``
    ``shop/eu/orders``                    ``shop/eu/orders``
    ``orders``                            ``public/default/orders``
    ====================================  ==========================

``NamespaceName`` and ``TopicName`` check the rule on creation, so a value of these types is
always well formed. Whether the named object exists is not checked here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args
from uuid import uuid4

from escapement.errors import InvalidRequest

# In bytes. Three parts and their slashes stay below 767 bytes, the limit of an InnoDB index
# key in every row format.
MAX_NAME_LENGTH: Final = 200
DEFAULT_TENANT: Final = "public"
DEFAULT_NAMESPACE: Final = "default"
SubscriptionKind = Literal["shared", "exclusive", "failover"]
SUBSCRIPTION_KINDS: Final[tuple[SubscriptionKind, ...]] = get_args(SubscriptionKind)
# The prefix of the names that producers get if the application does not choose one.
_ANONYMOUS: Final = "anonymous-"

_SCHEME: Final = "persistent://"
_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME_LENGTH}}}")
# The quoted length of a bad name: enough to recognise it, too short to flood a log.
_QUOTED_LENGTH: Final = 60


def check_name(kind: str, text: str) -> str:
    """Return ``text`` if it is a valid name of a ``kind``, such as "subscription".

    Raises:
      InvalidRequest: if it is not, with the allowed characters in the message.
    """
    if not isinstance(text, str) or _NAME.fullmatch(text) is None or text in (".", ".."):
        raise InvalidRequest(
            f"{_quote(text)} cannot be a {kind} name: 1 to {MAX_NAME_LENGTH} characters of "
            "A-Z a-z 0-9 . _ - are allowed, but not '.' or '..' alone"
        )
    return text


def anonymous_name() -> str:
    """Return a new unique name for a producer that needs no name after it ends."""
    return _ANONYMOUS + uuid4().hex


def is_anonymous(name: str) -> bool:
    """Return whether ``anonymous_name`` generated this name."""
    return name.startswith(_ANONYMOUS)


@dataclass(frozen=True, slots=True, order=True)
class NamespaceName:
    """The name of a namespace, ``tenant/namespace``."""

    tenant: str
    namespace: str

    def __post_init__(self) -> None:
        check_name("tenant", self.tenant)
        check_name("namespace", self.namespace)

    @classmethod
    def parse(cls, text: str) -> NamespaceName:
        """Read ``tenant/namespace``.

        Raises:
          InvalidRequest: if ``text`` has another form.
        """
        _check_text("namespace", text)
        parts = text.split("/")
        if len(parts) != 2:
            raise InvalidRequest(f"{_quote(text)} is not a namespace: write it as tenant/namespace")
        return cls(*parts)

    @property
    def full(self) -> str:
        """The full name, ``tenant/namespace``."""
        return f"{self.tenant}/{self.namespace}"

    def __str__(self) -> str:
        return self.full


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """The name of a topic, ``tenant/namespace/name``."""

    tenant: str
    namespace: str
    name: str

    def __post_init__(self) -> None:
        check_name("tenant", self.tenant)
        check_name("namespace", self.namespace)
        check_name("topic", self.name)

    @classmethod
    def parse(cls, text: str, kind: str = "topic") -> TopicName:
        """Read a topic name in any of the three forms.

        Args:
          text: the name.
          kind: the kind of object for error messages, if its names look like those of topics.

        Raises:
          InvalidRequest: if ``text`` has another form, or a part is not a valid name.
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
        """The full name, ``tenant/namespace/name``: the only form that is stored and compared."""
        return f"{self.tenant}/{self.namespace}/{self.name}"

    @property
    def in_namespace(self) -> NamespaceName:
        """The namespace of the topic."""
        return NamespaceName(self.tenant, self.namespace)

    @property
    def namespace_full(self) -> str:
        """The full name of the namespace, ``tenant/namespace``."""
        return f"{self.tenant}/{self.namespace}"

    def __str__(self) -> str:
        return self.full


def _check_text(kind: str, text: Any) -> None:
    if not isinstance(text, str):
        raise InvalidRequest(f"{_quote(text)} is not a {kind}: pass its name as a str")


def _quote(named: Any) -> str:
    text = named if isinstance(named, str) else repr(named)
    text = text if len(text) <= _QUOTED_LENGTH else text[: _QUOTED_LENGTH - 1] + "…"
    return repr(text) if isinstance(named, str) else text
