"""Outboxes: tables in databases of applications, whose rows become messages.

Begin with ``tables.py``, which has the tables. ``application.py`` reads and deletes rows in the
application's database. ``record.py`` stores in the log which rows are moved.
"""
