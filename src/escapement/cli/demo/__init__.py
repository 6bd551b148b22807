"""`escapement demo`: schedule messages, kill the broker, recover, and deliver on time.

Begin with ``demo.py``, which runs the steps. ``ledger.py`` checks the messages that arrive, and
``screen.py`` prints.
"""
