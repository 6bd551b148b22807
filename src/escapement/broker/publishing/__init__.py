"""The requests of publishers: to publish, cancel and reschedule messages.

Begin with ``publishing.py``. ``outcome.py`` decides which messages can still be changed.
"""
