"""Checks of the deliveries of a random workload: each delivery, and the orders of them.

Begin with ``arrivals.py``.
"""
