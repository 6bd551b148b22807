"""Names of topics, one in each bundle of a database."""

from __future__ import annotations

from escapement.names import TopicName
from escapement.storage.bundles import bundle_of_name


def topic_of_each_bundle(bundles: int, prefix: str = "t") -> list[str]:
    """Return the name of a topic in each bundle, in the order of the bundles."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < bundles:
        name = f"{prefix}{number}"
        found.setdefault(bundle_of_name(TopicName.parse(name).full, bundles), name)
        number += 1
    return [found[bundle_id] for bundle_id in range(bundles)]
