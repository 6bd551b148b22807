"""The journal: the changes that each group commit made since the last checkpoint.

Begin with ``journal.py``.
"""
