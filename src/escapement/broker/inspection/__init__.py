"""Views of a topic's messages, which deliver nothing and change nothing.

``peek``, ``search`` and ``selecting`` show pending messages, ``reading`` shows messages by offset,
and ``forecast`` counts them. Begin with ``search.py``, which reads the delivery order.
"""
