"""The connections of a broker, from the listener to their sessions.

Begin with ``front.py``, which admits, secures and serves connections. ``bootstrap.py`` takes the
first token of a broker.
"""
