"""The state in the database: what a checkpoint writes, and what a broker or reader loads.

Begin with ``checkpoint.py``.
"""
