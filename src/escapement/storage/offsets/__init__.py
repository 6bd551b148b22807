"""Sets of offsets, such as those a subscription has acknowledged. Begin with ``offsets.py``."""

from escapement.storage.offsets.offset_chunk import CHUNK_SIZE
from escapement.storage.offsets.offsets import FULL_CHUNKS, OffsetSet

__all__ = ["CHUNK_SIZE", "FULL_CHUNKS", "OffsetSet"]
