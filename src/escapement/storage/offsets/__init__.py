"""Sets of offsets: what a subscription has acknowledged, holds, or shall not see."""

from escapement.storage.offsets.offsetchunk import CHUNK_SIZE
from escapement.storage.offsets.offsets import FULL_CHUNKS, OffsetSet

__all__ = ["CHUNK_SIZE", "FULL_CHUNKS", "OffsetSet"]
