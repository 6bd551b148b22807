"""Plain counters of the whole broker, which any of its parts may increase.

Begin with ``totals.py``: all counters of a broker. ``histogram.py`` counts values by bucket.
``lateness_history.py`` has the lateness of each subscription in the last minutes.
"""
