"""Message tables: ordinary MySQL tables whose rows are messages.

An application creates a table with *directives* in its COMMENT, and enqueues messages by INSERT.
This package finds such tables in a database and decides whether they can be served. It does not
serve their rows.

Begin with ``discovery.py``, which lists the tables of a database. ``directives.py`` reads the
COMMENT, ``columns.py`` checks the columns, ``load.py`` has the statements that select the due rows,
and ``ddl.py`` writes a CREATE TABLE. ``fields.py`` converts rows to payloads, and payloads to typed
values.
"""
