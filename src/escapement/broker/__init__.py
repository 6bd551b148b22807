"""The broker: it stores published messages and delivers each one when it is due.

Begin with ``broker.py``: the start, the services for sessions, and the stop. ``services.py``
creates all services and connects them, and ``server.py`` is the process around a broker.
docs/architecture/code-map.md lists the packages, and the tasks that run.
"""
