"""The directory of bundles: which bundle a topic belongs to, and which broker owns each bundle.

Sessions answer from it, so it answers from memory. The default knows only the broker's own bundle.
A process that runs brokers of several bundles gives each of them a directory of all bundles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from escapement.errors import OtherDatabase
from escapement.protocol.limits import FEATURE_BUNDLE, FEATURE_LOG


class Place(NamedTuple):
    """The broker that owns a bundle.

    Attributes:
      address: ``host:port``; "" if no owner is known.
      epoch: the epoch of the bundle in the database; 0 if it is not known. Clients ignore a place
        whose epoch is lower than one that they have heard of.
    """

    address: str
    epoch: int


class Directory(Protocol):
    """The bundles of a database and their owners, as this process knows them."""

    @property
    def count(self) -> int:
        """The number of bundles."""
        ...

    def bundle_of(self, topic: str) -> int:
        """Return the bundle of a topic by its full name, whether the topic exists or not.

        Message tables, whose names begin with ``table://``, belong to bundle 0.
        """
        ...

    def owner_of(self, bundle_id: int) -> Place:
        """Return where clients find the broker of a bundle, now or soon.

        While the broker of a bundle stops, the address is that of the next owner if it is known.
        The epoch is never a guess: the next owner may be another one, or none for a while.
        """
        ...

    def next_owner_of(self, bundle_id: int) -> Place | None:
        """Return where the bundle of a broker goes that stops; None if there is no other broker."""
        ...


class OneBundle:
    """The directory of a broker that knows no other brokers: all topics belong to its bundle."""

    count = 1

    def __init__(self, bundle_id: int, address: str) -> None:
        self._bundle_id = bundle_id
        self._here = Place(address, 0)

    def bundle_of(self, topic: str) -> int:
        return self._bundle_id

    def owner_of(self, bundle_id: int) -> Place:
        return self._here if bundle_id == self._bundle_id else Place("", 0)

    def next_owner_of(self, bundle_id: int) -> Place | None:
        return None


def wanted_bundle(features: Mapping[str, Any]) -> int | None:
    """Return the bundle that the features of a Hello ask for; None if they name none."""
    wanted = features.get(FEATURE_BUNDLE)
    return wanted if type(wanted) is int and wanted >= 0 else None


def check_log(features: Mapping[str, Any], log_identity: bytes) -> None:
    """Check that a client which has used a database before still has the same one.

    Args:
      features: the features of the client's Hello, which may name the log that it has used.
      log_identity: the id of the log of this process.

    Raises:
      OtherDatabase: if the client names another log.
    """
    if features.get(FEATURE_LOG, log_identity) != log_identity:
        raise OtherDatabase("this broker uses another database than the client has used before")
