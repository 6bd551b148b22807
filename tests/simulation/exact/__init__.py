"""A workload of one broker, which takes one step at a time and is compared with an exact model.

Begin with ``workload.py``, which holds the broker, its clients and the model. ``model.py`` is the
model. The other modules are steps (``consuming.py``, ``traffic.py``, ``subscribers.py``,
``events.py`` ...). ``checks`` has the checks of deliveries.
"""
