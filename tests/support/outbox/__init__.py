"""An outbox in the database of an application, and a broker that serves it."""
