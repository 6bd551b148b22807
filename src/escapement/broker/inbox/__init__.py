"""Inbox entries: the services that write them, and the relay that moves them to topics' logs.

An inbox entry is a batch of messages in the database that is to be published to a topic. Dead
letters, schedules and follow-ups of groups are published in this way. Begin with
``inbox_relay.py``.
"""
