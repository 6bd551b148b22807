"""Sends messages in the transaction of an application's own MySQL or MariaDB database.

The application inserts rows into the table ``escapement_outbox`` of its database. The messages
exist exactly if its transaction commits. ``escapement sql install`` creates the table, and
``escapement serve --outbox URL`` moves its rows to their topics.
"""

from escapement.sql.insertion import insertion, schedule

__all__ = ["insertion", "schedule"]
