"""Message tables: rows of an application's database that are delivered as messages.

Begin with ``database.py``, which serves the tables of one database. ``served_table.py`` is one
table with its topic. ``cached_rows.py`` has the rows that are in memory, and ``polling.py`` decides
when to look for more. ``claim.py`` records rows right before they are sent, and ``row_writer.py``
writes acknowledgements. ``tables.py`` finds a table by its name.
"""
