"""Dead letters: messages that failed too often, expired or were dropped.

Begin with ``dead_messages.py``, the messages that wait for their dead letters. A dead letter itself
is in ``dead_letter.py``. ``expiry.py`` and ``backlog_ages.py`` find expired messages.
"""
