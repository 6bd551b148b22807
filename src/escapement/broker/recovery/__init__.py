"""From stored state to objects in memory: the whole broker at a start, a topic at its first use.

Begin with ``recovery.py``, which runs when a broker starts. ``activation.py`` creates the objects
of a topic, and ``passivator.py`` removes those of unused topics.
"""
