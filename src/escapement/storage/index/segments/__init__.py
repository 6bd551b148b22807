"""Segments: the immutable files of the delayed index, and the manifest that names them.

Begin reading in ``segment.py``.
"""
