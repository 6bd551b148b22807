"""The HTTP gateway: send, show, change, receive and acknowledge messages by plain HTTP (B15).

``escapement gateway`` runs it as a process of its own. It is an ordinary client of the brokers.
Each request carries a token of escapement, and the gateway has one client for each token.

Begin with ``gateway.py``, which runs it, and ``app.py``, which carries out requests. The operations
are in ``publishing.py``, ``messages.py`` and ``receiving.py``. An operation declares the types of
its headers, body and result (``operation.py``). These types check each request, and make the
OpenAPI document.

All modules but ``config.py`` need the packages of the extra ``http``.
"""
