"""The delayed index: messages sorted by due time, on local disk. Begin with ``index.py``."""

from escapement.storage.index.checkpoint import Checkpoint, Group, Part
from escapement.storage.index.compaction import Compaction, TopicRange
from escapement.storage.index.index import DelayedIndex
from escapement.storage.index.keys import KEY_MAX, KEY_MIN, Key
from escapement.storage.index.limits import IndexLimits
from escapement.storage.index.manifest import Lineage, Manifest, Mark
from escapement.storage.index.plan import Fetch, Plan

__all__ = [
    "KEY_MAX",
    "KEY_MIN",
    "Checkpoint",
    "Compaction",
    "DelayedIndex",
    "Fetch",
    "Group",
    "IndexLimits",
    "Key",
    "Lineage",
    "Manifest",
    "Mark",
    "Part",
    "Plan",
    "TopicRange",
]
