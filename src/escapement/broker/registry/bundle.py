"""The bundle of topics that a broker owns."""

from __future__ import annotations

from dataclasses import dataclass

from escapement.storage.bundles import bundle_of_name, wrong_bundle
from escapement.storage.engine.base import Dialect


@dataclass(slots=True)
class Bundle:
    """A bundle, as its owner knows it.

    Attributes:
      id: the id of the bundle. The owner of bundle 0 also changes what all bundles share.
      count: the number of bundles in the database at the start of the broker. It may have grown
        since. The creation of a topic reads the present number (storage/catalog/catalog.py).
      dialect: the SQL dialect of the database.
    """

    id: int
    count: int
    dialect: Dialect

    @property
    def is_only(self) -> bool:
        """Whether the database had no other bundle at the start of the broker."""
        return self.count == 1

    def has_name(self, full: str) -> bool:
        """Return whether a name belongs to this bundle if no topic has it."""
        return bundle_of_name(full, self.count) == self.id

    def check_name(self, full: str) -> None:
        """Raise ``WrongBundle`` if a name without a topic belongs to another bundle."""
        there = bundle_of_name(full, self.count)
        if there != self.id:
            raise wrong_bundle(full, there, self.id)
