"""Random workloads of a broker, compared with a naive model.

Begin with ``workload.py``, which holds the broker, its clients and the model. ``model.py`` is the
model. The other modules are steps (``consuming.py``, ``traffic.py``, ``subscribers.py``,
``events.py`` ...). ``checks`` has the checks of deliveries.
"""
