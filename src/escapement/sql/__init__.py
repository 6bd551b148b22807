"""Sends messages in the transaction of an application's own MySQL or MariaDB database.

The application inserts rows into the table ``escapement_outbox`` of its database. The messages
exist, and are cancelled or rescheduled, exactly if its transaction commits. ``escapement sql
install`` creates the table, and ``escapement serve --outbox URL`` carries its rows out.
"""

from escapement.sql.amendment import cancel, cancellation, reschedule, rescheduling
from escapement.sql.insertion import insertion, schedule

__all__ = ["cancel", "cancellation", "insertion", "reschedule", "rescheduling", "schedule"]
