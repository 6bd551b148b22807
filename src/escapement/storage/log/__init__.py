"""The log: all messages in arrival order, in generations of database tables.

Begin with ``log.py``.
"""
