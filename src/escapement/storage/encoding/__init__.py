"""Encodings: how values are stored as bytes in rows of the database and of its journal.

Each kind of value has a module. Begin with ``attempts.py``, a typical encoding. ``seal.py`` has the
checksums of encoded data.
"""
