"""The consumer: it receives messages and acknowledges them.

Begin with ``inbox.py``, the consumer that applications use. Its messages come from
``delivery_buffer.py``, and acknowledgements leave through ``ack_queue.py``.
"""
