"""The requests of publishers: to publish, cancel and reschedule messages."""
