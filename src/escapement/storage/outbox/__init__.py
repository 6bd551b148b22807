"""Outboxes: tables in databases of applications, whose rows become messages.

Begin with ``tables.py``, which has our tables, and ``mapping.py``, which maps any table to
messages. ``statements.py`` makes the SQL of a mapping. ``application.py`` reads rows in the
application's database and makes them done. ``record.py`` stores in the log which rows are moved.
"""
