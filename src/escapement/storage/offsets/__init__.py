"""Sets of offsets of a topic's messages, such as those that a subscription has acknowledged.

Begin reading in ``offsets.py``.
"""

from escapement.storage.offsets.offset_chunk import CHUNK_SIZE
from escapement.storage.offsets.offsets import FULL_CHUNKS, OffsetSet

__all__ = ["CHUNK_SIZE", "FULL_CHUNKS", "OffsetSet"]
