"""Inbox entries: the services that write them, and the relay that moves them to topics' logs."""
