"""Outbox relays: they move rows of outboxes in databases of applications into the inbox.

Begin with ``outbox_relay.py``. ``outbox_relays.py`` starts a relay for each outbox, and
``relays.py`` has these and the relays of acknowledgements.
"""
