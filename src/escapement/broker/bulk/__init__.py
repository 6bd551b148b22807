"""Bulk changes: cancel, reschedule, run now or redrive all messages that match a filter.

Begin with ``bulk_changes.py``. ``selection.py`` finds the messages, and ``slices.py`` changes some
of them at a time.
"""
