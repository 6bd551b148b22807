"""The delayed index: messages sorted by due time, on local disk.

Begin with ``index.py``. New messages are in ``memory.py`` until a checkpoint (``checkpoint.py``)
writes them into segments, the files in the folder ``segments``. ``plan.py`` has the plans and
fetches that read the index.
"""

from escapement.storage.index.checkpoint import Checkpoint, Group, Part
from escapement.storage.index.index import DelayedIndex
from escapement.storage.index.keys import KEY_MAX, KEY_MIN, Key
from escapement.storage.index.limits import IndexLimits
from escapement.storage.index.merging.compaction import Compaction, TopicRange
from escapement.storage.index.plan import Fetch, Plan
from escapement.storage.index.segments.manifest import Lineage, Manifest, Mark

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
