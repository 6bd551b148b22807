"""Measurements of single messages: many consumers that take one message at a time.

Begin with ``workers``.
"""
