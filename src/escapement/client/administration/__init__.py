"""Requests of a client besides producing and consuming: to look at messages and change them.

The class ``Broker`` (in ``client/broker.py``) has a method for each of these requests; begin there.
In this folder, ``amending.py`` cancels and reschedules messages, and ``peeking.py`` reads pending
ones.
"""
