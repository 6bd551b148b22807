"""Parts of the broker that a run uses beside its main traffic, each with its topics and clients.

Begin with ``feature.py``. ``choosing.py`` has all features, and chooses those of a run. The checks
of a feature are in the module of the same name in ``simulation.checks``.
"""
