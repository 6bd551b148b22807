"""Merges of segments, the files of the delayed index, and the building of a whole new index.

Begin reading in ``compaction.py``.
"""
