"""Tracing of a client with OpenTelemetry.

Begin with ``tracing.py``, which decides whether a client traces. ``tracer.py`` makes the spans, and
is the only module that imports OpenTelemetry. ``trace_context.py`` puts contexts into the
properties of messages, and finds them there.

A client that does not trace uses none of it: its producers and consumers are those of
``producing`` and ``consuming``. Otherwise they are the subclasses ``TracedProducer`` and
``TracedInbox``.
"""
