"""Database engines: SQLite, MySQL and MariaDB behind one interface.

Begin reading in ``base.py``.
"""
