"""The bundle of topics that a broker owns."""

from __future__ import annotations

from dataclasses import dataclass

from escapement.broker.directory import Directory
from escapement.storage.bundles import bundle_of_name, wrong_bundle
from escapement.storage.engine.base import Dialect


@dataclass(slots=True)
class Bundle:
    """A bundle, as its owner knows it.

    The creation of a topic reads the present number of bundles (storage/catalog/catalog.py). All
    else is answered from memory, and so for about a second by an outdated number.

    Attributes:
      id: the id of the bundle. The owner of bundle 0 also changes what all bundles share.
      known: the number of bundles in the database at the start of the broker.
      dialect: the SQL dialect of the database.
      directory: the bundles of all topics. That of a broker without a node knows one bundle only,
        and then hashes decide.
    """

    id: int
    known: int
    dialect: Dialect
    directory: Directory

    @property
    def count(self) -> int:
        """The number of bundles."""
        return max(self.known, self.directory.count)

    @property
    def is_only(self) -> bool:
        """Whether the database has no other bundle."""
        return self.count == 1

    def has_name(self, full: str) -> bool:
        """Return whether a name belongs to this bundle if the broker has no topic of the name."""
        return self._bundle_of(full) == self.id

    def check_name(self, full: str) -> None:
        """Raise ``WrongBundle`` if a topic that the broker does not have is in another bundle."""
        there = self._bundle_of(full)
        if there != self.id:
            raise wrong_bundle(full, there, self.id)

    def is_misplaced(self, full: str) -> bool:
        """Return whether a topic of this bundle would be created in another one today."""
        return bundle_of_name(full, self.count) != self.id

    def _bundle_of(self, full: str) -> int:
        if self.directory.count < self.known:
            return bundle_of_name(full, self.known)
        return self.directory.bundle_of(full)
