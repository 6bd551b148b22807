"""The HTTP side port: health, metrics, and the verbs of administration for programs.

Begin with ``side_port.py``, which runs the port beside the broker, and ``app.py``, its routes. Only
``config.py`` and ``shown.py`` can be imported without the packages of the extra ``http``.
"""
