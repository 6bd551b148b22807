"""Sends and acknowledges messages in transactions of an application's MySQL or MariaDB database.

The application inserts rows into the table ``escapement_outbox`` of its database. The messages
exist, and are cancelled or rescheduled, exactly if its transaction commits. ``escapement sql
install`` creates the table, and ``escapement serve --outbox URL`` carries its rows out.

A consumer inserts rows into the table ``escapement_acks``. The messages are acknowledged exactly if
its transaction commits.
"""

from escapement.sql.acknowledgement import ack, acknowledgement
from escapement.sql.amendment import cancel, cancellation, reschedule, rescheduling
from escapement.sql.insertion import insertion, schedule

__all__ = [
    "ack",
    "acknowledgement",
    "cancel",
    "cancellation",
    "insertion",
    "reschedule",
    "rescheduling",
    "schedule",
]
